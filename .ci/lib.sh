# What .ci/run and .ci/versions share; sourced, from the root of the checkout.

# Prints the path of the first of the named interpreters that is new enough and can make environments.
find_python() { # find_python NAME...
  local candidate ask found
  ask='import sys, venv, ensurepip; assert sys.version_info >= (3, 11); print(sys.executable)'
  for candidate in "$@"; do
    if found=$("$candidate" -c "$ask" 2>/dev/null); then
      echo "$found"
      return
    fi
  done
  echo "Python >= 3.11 with venv is needed, and none was found among: $*" >&2
  return 1
}

# Copies the files that a clone would have, and those not yet added; never what git ignores.
copy_to() { # copy_to FOLDER
  mkdir -p "$1"
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard |
      while IFS= read -r -d '' file; do
        if [ -e "$file" ]; then printf '%s\0' "$file"; fi
      done | tar --null -T - -cf - | tar -xf - -C "$1"
  else
    tar --exclude ./.venv -cf - . | tar -xf - -C "$1"
  fi
}
