#!/bin/sh
# SPDX-License-Identifier: MIT OR GPL-2.0
# Every mistake in mutants.txt must make the property test fail; one that survives names a missing check.
# Usage: mutants.sh, with CC and BUILD set by the Makefile.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "$BUILD/mutants.XXXXXX")
trap 'rm -rf "$work"' EXIT
flags="-std=gnu11 -w -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -I$here -I$here/.."
# shellcheck disable=SC2086
$CC $flags -c -o "$work/property.o" "$here/property.c"
survives() {
	# shellcheck disable=SC2086
	$CC $flags -o "$work/mutant" "$work/property.o" "$1" -lpthread
	ASAN_OPTIONS=detect_leaks=0 timeout 20 "$work/mutant" 3 4000 16 0 >"$work/log" 2>&1 &&
		ASAN_OPTIONS=detect_leaks=0 timeout 20 "$work/mutant" 4 4000 64 2 >"$work/log" 2>&1
}

# A test that fails on the real file would catch everything.
if ! survives "$here/../ptslab.c"; then
	cat "$work/log" >&2
	exit 1
fi
caught=0
survived=''
while IFS='|' read -r name edit; do
	case $name in '' | '#'*) continue ;; esac
	sed "$edit" "$here/../ptslab.c" >"$work/mutant.c"
	if cmp -s "$work/mutant.c" "$here/../ptslab.c"; then
		echo "mutant $name changes nothing: mutants.txt no longer fits ptslab.c" >&2
		exit 1
	fi
	if survives "$work/mutant.c"; then
		survived="$survived $name"
	else
		caught=$((caught + 1))
	fi
done <"$here/mutants.txt"
if [ -n "$survived" ]; then
	echo "survived:$survived (wanted: none)" >&2
	exit 1
fi
echo "mutants: $caught of $caught caught"
