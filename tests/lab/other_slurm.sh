#!/bin/sh
# Unpacks Slurm of another Debian, to try ours against its version: `CLUSTERDDP_SLURM_ROOT=FOLDER make test-slurm`.
# Its programs run with their own libraries; munge, and the database where accounts are tested, are this machine's.
#
#     tests/lab/other_slurm.sh trixie /opt/slurm-trixie    # 24.11; needs root, debootstrap, patchelf
#
# The folder may not lie in /tmp, /run, /home or /var/tmp, of which lab hosts have their own.
set -eu
suite=$1 root=$2
libraries=$root/usr/lib/x86_64-linux-gnu
debootstrap --variant=minbase "$suite" "$root"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # start no service
chmod +x "$root/usr/sbin/policy-rc.d"
DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends slurm-wlm slurmdbd
mkdir "$root/lab"
for name in sacct sacctmgr salloc sbatch sbcast scancel scontrol sinfo squeue srun slurmctld slurmd slurmdbd slurmstepd; do
    for path in bin/$name sbin/$name-wlm sbin/$name; do
        if [ -f "$root/usr/$path" ] && [ ! -e "$root/lab/$name" ]; then cp "$root/usr/$path" "$root/lab/$name"; fi
    done
    patchelf --force-rpath --set-rpath "$libraries:$libraries/slurm-wlm" \
        --set-interpreter "$root/lib64/ld-linux-x86-64.so.2" "$root/lab/$name"
done
