package program

import (
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

// UserID finds the uid of a name or number. Beyond the files it asks getent, because a static binary
// does not see directory services.
func UserID(name string) (uint32, bool) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), true
	}
	if u, err := user.Lookup(name); err == nil {
		n, err := strconv.ParseUint(u.Uid, 10, 32)
		return uint32(n), err == nil
	}
	if name == "" || strings.HasPrefix(name, "-") {
		return 0, false
	}
	out, err := exec.Command("getent", "passwd", name).Output()
	if err != nil {
		return 0, false
	}
	f := strings.Split(string(out), ":")
	if len(f) < 3 {
		return 0, false
	}
	n, err := strconv.ParseUint(f[2], 10, 32)
	return uint32(n), err == nil
}

// UserName gives the name of a uid, or its digits when it has none here.
func UserName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	out, err := exec.Command("getent", "passwd", id).Output()
	if name, _, found := strings.Cut(string(out), ":"); err == nil && found && name != "" {
		return name
	}
	return id
}
