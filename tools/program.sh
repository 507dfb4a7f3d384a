# Sourced by tools and examples: sets $aqpipe, the program: AQPIPE, or the one on the PATH, or this checkout's build (preset
# release, then test), or the one that was installed with this file. Ends the script with 127 where there is none.
aqpipe_program() {
  local tools
  tools=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
  for aqpipe in "${AQPIPE:-aqpipe}" "$tools"/../build/{release,test}/bin/aqpipe "$tools/../../../bin/aqpipe"; do
    aqpipe=$(command -v "$aqpipe") && return
    [ -z "${AQPIPE:-}" ] || break # what the caller names is not replaced
  done
  echo "${0##*/}: there is no program ${AQPIPE:-aqpipe}: build it (cmake --preset release && cmake --build --preset release)," \
    "put its folder on the PATH, or name it in AQPIPE" >&2
  exit 127
}
aqpipe_program
export AQPIPE=$aqpipe # for what the script starts
