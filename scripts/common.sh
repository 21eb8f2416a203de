# Shared by the scripts in this folder: how they speak and how they install packages. Sourced, never run.
# shellcheck shell=bash

say() { printf '  %-9s %s\n' "$1" "$2" >&2; }

fail() {
    say "$1" "$2"
    exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# Prints the reason why packages cannot be installed here; fails when they can.
why_no_apt() {
    if [[ ${ORDERBED_APT:-auto} == never ]]; then
        echo "ORDERBED_APT=never"
    elif ! have apt-get; then
        echo "no apt-get on this system"
    elif ((EUID != 0)); then
        echo "not root"
    else
        return 1
    fi
}

# Runs a long command without its noise; shows the end of it when it fails.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then
        rm -f "$log"
    else
        tail -n 15 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

apt_quietly() {
    # Two clones may do so at once, and apt does not wait for another one that updates its lists.
    DEBIAN_FRONTEND=noninteractive quietly flock /var/lib apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

apt_refresh() {
    [[ -n ${apt_is_fresh:-} ]] || apt_quietly update || fail packages "apt-get update failed: see above"
    apt_is_fresh=yes
}

# True when apt knows a version of the package that it could install.
apt_offers() {
    local policy
    policy=$(LC_ALL=C apt-cache policy "$1" 2>/dev/null)
    [[ $policy == *"Candidate: "[^\(]* ]]
}
