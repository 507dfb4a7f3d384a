# Sourced by tools/test and .ci/run: `phase NAME COMMAND...` runs the command and appends a line to build/phases.tsv:
# name, seconds by the clock, seconds of processors (user and system, of all processes that were waited for).
processor_ticks() { # hundredths of a second of this shell's children so far, into $ticks
  local file
  file=$(mktemp)
  times >"$file" # in this shell: a subshell has children of its own
  ticks=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } printf "%d", 100 * sum }' "$file")
  rm -f "$file"
}

phase() {
  local name=$1 begin=$SECONDS code=0 ticks ticks_before
  shift
  processor_ticks
  ticks_before=$ticks
  "$@" || code=$?
  processor_ticks
  printf '%s\t%d\t%d\n' "$name" $((SECONDS - begin)) $(((ticks - ticks_before) / 100)) >>build/phases.tsv
  return $code
}
