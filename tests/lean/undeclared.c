/* torch declares its thousands of operators while its library is loaded, 150 ms of CPU; torchrun calls none of them.
   These stand before torch::Library's own functions: each gives back the library it was called on, as they do.
   The names are torch 2.13's; of another torch they are never called, and it declares its operators. */
#define SAME(name) \
  void *name(void *library) { return library; }
SAME(_ZNR5torch7Library4_defEON3c1014FunctionSchemaEPNS1_12OperatorNameERKSt6vectorINS_10headeronly3TagESaIS8_EENS_17_RegisterOrVerifyE)
SAME(_ZNR5torch7Library4_defEOSt7variantIJN3c1012OperatorNameENS2_14FunctionSchemaEEEONS_11CppFunctionERKSt6vectorINS_10headeronly3TagESaISB_EE)
SAME(_ZNR5torch7Library5_implEPKcONS_11CppFunctionENS_17_RegisterOrVerifyE)
SAME(_ZNR5torch7Library9_fallbackEONS_11CppFunctionE)
