"""Switches of torch's compiler that are read without it, as they are by default."""

error_on_nested_fx_trace = True
fake_tensor_cache_enabled = True
fake_tensor_cache_crosscheck_enabled = False
_custom_ops_profile = None
