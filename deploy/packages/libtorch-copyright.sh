#!/usr/bin/env bash
# Prints the licences of everything in the package of libtorch: deploy/packages/libtorch-copyright.sh LIBTORCH
#
# The wheels that libtorch comes from bring them along (deploy/install-libtorch.sh keeps them).
set -euo pipefail

licenses="${1:?the folder of libtorch}/licenses"
for wheel in torch nvidia_cuda_runtime nvidia_cuda_cupti; do
    compgen -G "$licenses/$wheel/*" >/dev/null || {
        printf 'packages: error: %s has no licence of %s; remove the folder and run deploy/install-libtorch.sh\n' "$licenses" "$wheel" >&2
        exit 1
    }
done

cat <<'TEXT'
This package has the CPU half of libtorch, as the PyTorch project builds it (https://pypi.org/project/torch),
and what it cannot be loaded without:

  libtorch_cpu.so, libc10.so  PyTorch, BSD-3-Clause, with the libraries named below inside
  libtorch.so                 an empty library of Ringtune's that names the other two, Apache-2.0
  libgomp.so.1                GNU libgomp, GPL-3 with the GCC Runtime Library Exception, from the same wheel
  libcudart.so.13             NVIDIA CUDA runtime, NVIDIA Software License Agreement: its Attachment A
  libcupti.so.13              and NVIDIA CUPTI, the same; both may be passed on with a program that uses them

The files are as they came. Their licences:
TEXT
find "$licenses" -type f | LC_ALL=C sort | while read -r file; do
    printf '\n%s\n%s\n\n' "$(printf '%.0s-' {1..80})" "${file#"$licenses/"}"
    cat -- "$file"
done
