say() { echo "MARK $*" >&3; };
runs() { [ "$("$1" WORD --probe 2>/dev/null </dev/null)" = "IDENTITY" ]; };
clean() { [ -z "$new" ] || rm -rf "$new"; };
room() {
[ -d "$1" ] && [ -w "$1" ] || return 1;
set -- "$1" $(df -Pk "$1" 2>/dev/null | tail -n 1);
if [ "${5:-0}" -lt $((BYTES / 1024 + 64)) ]; then say no-space "$1"; return 1; fi;
new=$(mktemp -d "$1/MARK-XXXXXXXX" 2>/dev/null) || { new=; return 1; };
: >"$new/try" && chmod 700 "$new/try" && "$new/try" 2>/dev/null </dev/null && return;
clean; new=; say no-exec "$1"; return 1;
};
fill() {
say send;
head -c BYTES >"$1" || { say full "${new%/*}"; exit 1; };
[ "$(wc -c <"$1")" -eq BYTES ] || { say torn; exit 1; };
if command -v sha256sum >/dev/null; then case "$(sha256sum "$1")" in ("HASH "*) ;; (*) say torn; exit 1 ;; esac; fi;
chmod 700 "$1";
said=$("$1" WORD --probe 2>&1 </dev/null) || { say no-run "$said"; exit 1; };
};
prune() {
find "$1" -mindepth 1 -maxdepth 1 -name "caravan-*" -mtime +DAYS 2>/dev/null | head -n REMOVED |
while read -r old; do rm -rf "$old"; done;
};
cached() {
case "${XDG_CACHE_HOME:-}" in (/*) folder=$XDG_CACHE_HOME ;; (*) folder=${HOME:+$HOME/.cache} ;; esac;
[ -n "$folder" ] || return 1;
folder=$folder/caravan/agents;
file=$folder/caravan-HASH;
if [ -f "$file" ] && [ -O "$file" ] && [ "$(wc -c <"$file")" -eq BYTES ] && runs "$file"; then touch -c "$file"; return; fi;
mkdir -p "$folder" 2>/dev/null && [ -O "$folder" ] && room "$folder" || return 1;
fill "$new/caravan-HASH";
mv -f "$new/caravan-HASH" "$file" || { say full "$folder"; exit 1; };
clean; new=;
prune "$folder" >/dev/null </dev/null;
};
temporary() {
for base in "${TMPDIR:-/tmp}" /var/tmp "$HOME" "$XDG_RUNTIME_DIR"; do
room "$base" && break;
done;
[ -n "$new" ] || { say no-copy; exit 1; };
file=$new/caravan-HASH;
fill "$file";
new=;
};
find_copy() {
LC_ALL=C; export LC_ALL; umask 077; new=;
kind="$(uname -sm)";
[ "$kind" = "KIND" ] || { say other "$kind"; exit 1; };
trap clean EXIT; trap "exit 1" HUP INT TERM PIPE;
[ COPIES = cached ] && cached || temporary;
echo "$file";
};
exec 3>&1;
if runs caravan; then exec caravan WORD 3>&-; fi;
[ COPIES != none ] || { say absent "$(caravan --version 2>/dev/null </dev/null)"; exit 1; };
caravan=$(find_copy) || exit 1;
case "${caravan%/*}" in (*/MARK-????????) exec "$caravan" WORD --remove "${caravan%/*}" 3>&- ;; esac;
exec "$caravan" WORD 3>&-
