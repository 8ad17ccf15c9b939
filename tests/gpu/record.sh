#!/bin/sh
# Record what this machine's NVIDIA driver prints in every question that the doctor asks, a file each:
#
#     tests/gpu/record.sh [FOLDER]        (tests/data/nvidia-smi/recorded unless told otherwise)
#
# Files are named for the number and name of the GPUs and the driver's version. Serial numbers and the first part of
# UUIDs are taken out. Nothing is changed on the machine; root is not needed.
set -eu
folder=${1:-$(dirname "$0")/../data/nvidia-smi/recorded}
fields=index,uuid,name,memory.total,memory.used,driver_version,mig.mode.current,pci.bus_id
app_fields=gpu_uuid,pid,used_memory
shape=--format=csv,noheader,nounits

mkdir -p "$folder"
count=$(nvidia-smi -L | grep -c '^GPU ')
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr -cs 'A-Za-z0-9\n' '-' | tr '[:upper:]' '[:lower:]')
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
base=$folder/$count-$name-$driver

anonymous() {
    sed -E -e 's/GPU-[0-9a-fA-F]{8}-/GPU-00000000-/g' -e 's#<(serial|board_id|pdi|chassis_serial_number)>[^<]*#<\1>#g'
}

# A question that fails is recorded too: its words are what the doctor has to understand.
ask() {
    suffix=$1
    shift
    { "$@" 2>&1 || echo "exit status $?"; } | anonymous >"$base$suffix"
    echo "$base$suffix"
}

ask .csv nvidia-smi --query-gpu=$fields $shape
ask .apps.csv nvidia-smi --query-compute-apps=$app_fields $shape
ask .xml nvidia-smi -q -x
ask .nvlink.txt nvidia-smi nvlink -s
ask .field.txt nvidia-smi --query-gpu=index,no.such.field $shape
ask .journal journalctl -k -b -q --no-pager -o short-unix --grep 'NVRM: Xid'
ask .dmesg sh -c "dmesg | grep 'NVRM: Xid'"
