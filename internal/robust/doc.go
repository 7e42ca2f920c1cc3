// Package robust breaks real clusters: its tests start all programs as processes, built with the tag
// "faults", behind relays that delay, cut and swallow what they say to each other; they kill, stop and
// starve them under load, and hold what users saw and what really ran against the promises of the
// design. Everything is in the tests; the long ones run with -robust (make robust, robust-failover,
// robust-agent, robust-members), as root.
package robust
