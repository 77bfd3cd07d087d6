# shellcheck shell=bash
# shellcheck disable=SC2154 # set by the caller
# Sourced by tests/otp-suites/prepare.sh and tests/redis-suite/run. The caller sets work and defines fail and say.

# debian_source SOURCE INSTALLED OPTION MEMBER...: fetches Debian's source package of an installed package once, unpacks
# these members of it, and prints the path of the tree. It uses its own source list and package lists, and does not
# change the user's apt configuration. OPTION is what a user gives instead.
debian_source() {
    local source=$1 installed=$2 option=$3 version cache
    shift 3
    version=$(dpkg-query -W -f '${source:Version}' "$installed" 2>/dev/null) ||
        fail "$source was not installed from Debian's $installed: give its source tree with $option DIR"
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/caravan/$source
    if [ ! -d "$cache/$version" ]; then
        say "fetching Debian's source package $source $version into $cache" >&2
        mkdir -p "$cache"
        apt_source "$source" "$version" "$cache" "$option" "$@" >&2
    fi
    printf '%s\n' "$cache/$version"
}

apt_source() {
    local source=$1 version=$2 cache=$3 instead="give the source tree with $4 DIR"
    local private=$work/apt keyring=/usr/share/keyrings/debian-archive-keyring.gpg options signed="" archive
    shift 4
    command -v apt-get >/dev/null || fail "there is no apt-get: $instead"
    mkdir -p "$private/parts" "$private/lists/partial" "$private/archives/partial" "$private/download"
    [ ! -e "$keyring" ] || signed="[signed-by=$keyring] "
    apt-get indextargets --format "deb-src $signed\$(REPO_URI) \$(RELEASE) \$(COMPONENT) #\$(ORIGIN)" \
        'Identifier: Packages' 2>/dev/null | sed -n 's/ #Debian$//p' | sort -u >"$private/parts/source.list"
    [ -s "$private/parts/source.list" ] || fail "apt has no Debian archive in its lists: $instead"
    options=(-qq -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$private/parts"
             -o "Dir::State::lists=$private/lists" -o "Dir::Cache=$private" -o "APT::Sandbox::User=$(id -un)")
    apt-get "${options[@]}" update || fail "apt-get could not fetch Debian's source index; or $instead"
    (cd "$private/download" && apt-get "${options[@]}" source --download-only "$source=$version") ||
        fail "Debian's archive has no source of $source $version: $instead"
    archive=$(echo "$private"/download/*.orig.tar.*)
    # Unpack under another name, so that an interrupted unpacking does not look like a whole tree.
    rm -rf "$cache/unpacking"
    mkdir "$cache/unpacking"
    tar -xf "$archive" -C "$cache/unpacking" --strip-components=1 --wildcards --no-anchored "$@" ||
        fail "cannot unpack $archive"
    mv "$cache/unpacking" "$cache/$version"
}
