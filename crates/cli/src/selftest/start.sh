LC_ALL=C;
say() { echo "caravan-selftest $*"; };
if [ "$(caravan selftest-peer --probe 2>/dev/null)" = "IDENTITY" ]; then exec caravan selftest-peer; fi;
say need "$(uname -s)" "$(uname -m)";
read -r bytes hash || exit 0;
umask 077;
folder=; why="no-folder"; 
clean() { [ -z "$folder" ] || rm -rf "$folder"; };
trap clean EXIT;
trap "exit 1" HUP INT TERM PIPE;
for base in "${TMPDIR:-/tmp}" /var/tmp "$HOME" "$XDG_RUNTIME_DIR"; do
[ -d "$base" ] && [ -w "$base" ] || continue;
set -- $(df -Pk "$base" 2>/dev/null | tail -n 1);
if [ "${4:-0}" -lt $((bytes / 1024 + 64)) ]; then why="no-space $base"; continue; fi;
folder=$(mktemp -d "$base/caravan-selftest-XXXXXXXX") || { folder=; continue; };
: >"$folder/try" && chmod 700 "$folder/try" && "$folder/try" 2>/dev/null && break;
clean; folder=; why="no-exec $base";
done;
[ -n "$folder" ] || { say "$why"; exit 1; };
file="$folder/caravan-$hash";
say send;
head -c "$bytes" >"$file" || { say no-space "$folder"; exit 1; };
[ "$(wc -c <"$file")" -eq "$bytes" ] || { say torn; exit 1; };
if command -v sha256sum >/dev/null; then case "$(sha256sum "$file")" in "$hash "*) ;; *) say torn; exit 1 ;; esac; fi;
chmod 700 "$file";
said=$("$file" selftest-peer --probe 2>&1) || { say no-run "$said"; exit 1; };
exec "$file" selftest-peer --remove "$folder"
