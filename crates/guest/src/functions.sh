# What scripts in guests share: it stands in front of each.

# within SECONDS COMMAND...: again and again until it succeeds; fails if it never does.
within() {
    tries=$(($1 * 10))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

