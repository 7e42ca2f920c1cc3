package authn

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Account is one user of this machine as its passwd and group files describe it. It is immutable.
type Account struct {
	UID        uint32
	GID        uint32
	User       string
	Group      string // name of GID; empty when it has none
	Home       string
	Shell      string
	Groups     []uint32 // supplementary and primary, ascending
	GroupNames []string // names of Groups, where they have one
}

// Limits of the account files; a larger file is an error, not a partial table.
const (
	MaxAccountFile = 64 << 20 // bytes
	MaxAccountLine = 1 << 20  // bytes; group lines hold whole member lists
	// MaxGroups bounds the supplementary groups of one user, the kernel's own limit.
	MaxGroups = 65536
)

// accountTTL is how long a table is used before the files are looked at again.
const accountTTL = 2 * time.Second

// ErrNoAccount says that the account files do not have the user.
var ErrNoAccount = errors.New("no such user")

// Accounts answers who a uid is. The controller takes user, group, home and shell from here,
// never from a request. Reads are lock-free while the table is fresh.
type Accounts struct {
	passwd, group string
	now           func() time.Time

	table atomic.Pointer[accountTable]
	mu    sync.Mutex // one reader of the files at a time
}

type accountTable struct {
	checked    time.Time
	stamps     [2]fileStamp
	byUID      map[uint32]*Account
	byName     map[string]*Account
	groupNames map[uint32]string
	gids       map[string]uint32
}

type fileStamp struct {
	mtime time.Time
	size  int64
}

// NewAccounts reads passwd and group files as they are at the moment of use, at most every two
// seconds and only when they have changed.
func NewAccounts(passwd, group string, now func() time.Time) *Accounts {
	return &Accounts{passwd: passwd, group: group, now: now}
}

// ByUID gives the account of a uid, or ErrNoAccount.
func (a *Accounts) ByUID(uid uint32) (*Account, error) {
	t, err := a.current()
	if err != nil {
		return nil, err
	}
	if acc := t.byUID[uid]; acc != nil {
		return acc, nil
	}
	return nil, fmt.Errorf("uid %d: %w", uid, ErrNoAccount)
}

// ByName gives the account of a user name, or ErrNoAccount.
func (a *Accounts) ByName(name string) (*Account, error) {
	t, err := a.current()
	if err != nil {
		return nil, err
	}
	if acc := t.byName[name]; acc != nil {
		return acc, nil
	}
	return nil, fmt.Errorf("user %q: %w", name, ErrNoAccount)
}

// GID gives the number of a group name.
func (a *Accounts) GID(name string) (uint32, bool) {
	t, err := a.current()
	if err != nil {
		return 0, false
	}
	gid, ok := t.gids[name]
	return gid, ok
}

// current gives a table not older than accountTTL. When the files cannot be read any more, the
// last good table serves on: a half-written passwd must not lock everybody out.
func (a *Accounts) current() (*accountTable, error) {
	now := a.now()
	if t := a.table.Load(); t != nil && now.Sub(t.checked) < accountTTL && now.Sub(t.checked) >= 0 {
		return t, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.table.Load()
	if old != nil && now.Sub(old.checked) < accountTTL && now.Sub(old.checked) >= 0 {
		return old, nil
	}
	stamps, err := a.stamps()
	if err == nil && old != nil && stamps == old.stamps {
		fresh := *old
		fresh.checked = now
		a.table.Store(&fresh)
		return &fresh, nil
	}
	var t *accountTable
	if err == nil {
		t, err = readAccounts(a.passwd, a.group)
	}
	if err != nil {
		if old == nil {
			return nil, err
		}
		fresh := *old
		fresh.checked = now
		a.table.Store(&fresh)
		return &fresh, nil
	}
	t.checked, t.stamps = now, stamps
	a.table.Store(t)
	return t, nil
}

func (a *Accounts) stamps() (s [2]fileStamp, err error) {
	for i, path := range []string{a.passwd, a.group} {
		info, err := os.Stat(path)
		if err != nil {
			return s, fmt.Errorf("account file: %w", err)
		}
		s[i] = fileStamp{info.ModTime(), info.Size()}
	}
	return s, nil
}

func readAccounts(passwd, group string) (*accountTable, error) {
	t := &accountTable{
		byUID: map[uint32]*Account{}, byName: map[string]*Account{},
		groupNames: map[uint32]string{}, gids: map[string]uint32{},
	}
	if err := eachLine(passwd, t.addUser); err != nil {
		return nil, err
	}
	if err := eachLine(group, t.addGroup); err != nil {
		return nil, err
	}
	for _, acc := range t.byName {
		t.finish(acc)
	}
	return t, nil
}

// addUser takes one passwd line; lines that are none of passwd's are passed over, as libc does.
func (t *accountTable) addUser(line string) {
	f := strings.Split(line, ":")
	if len(f) < 7 || f[0] == "" {
		return
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil {
		return
	}
	acc := &Account{UID: uint32(uid), GID: uint32(gid), User: f[0], Home: f[5], Shell: f[6]}
	if acc.Shell == "" {
		acc.Shell = "/bin/sh"
	}
	if _, taken := t.byName[acc.User]; taken {
		return
	}
	t.byName[acc.User] = acc
	if _, taken := t.byUID[acc.UID]; !taken {
		t.byUID[acc.UID] = acc
	}
}

// addGroup takes one group line.
func (t *accountTable) addGroup(line string) {
	f := strings.Split(line, ":")
	if len(f) < 4 || f[0] == "" {
		return
	}
	gid, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return
	}
	if _, taken := t.groupNames[uint32(gid)]; !taken {
		t.groupNames[uint32(gid)] = f[0]
	}
	if _, taken := t.gids[f[0]]; !taken {
		t.gids[f[0]] = uint32(gid)
	}
	for name := range strings.SplitSeq(f[3], ",") {
		if acc := t.byName[strings.TrimSpace(name)]; acc != nil && len(acc.Groups) < MaxGroups {
			acc.Groups = append(acc.Groups, uint32(gid))
		}
	}
}

func (t *accountTable) finish(acc *Account) {
	acc.Group = t.groupNames[acc.GID]
	all := append(acc.Groups, acc.GID)
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	acc.Groups = all[:0]
	for i, g := range all {
		if i > 0 && all[i-1] == g {
			continue
		}
		acc.Groups = append(acc.Groups, g)
	}
	for _, g := range acc.Groups {
		if name := t.groupNames[g]; name != "" {
			acc.GroupNames = append(acc.GroupNames, name)
		}
	}
}

func eachLine(path string, add func(string)) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("account file: %w", err)
	}
	defer f.Close()
	return scanLines(f, path, add)
}

func scanLines(r io.Reader, path string, add func(string)) error {
	limited := &io.LimitedReader{R: r, N: MaxAccountFile + 1}
	sc := bufio.NewScanner(limited)
	sc.Buffer(make([]byte, 0, 64<<10), MaxAccountLine)
	for sc.Scan() {
		line := sc.Text()
		if line == "" || line[0] == '#' || line[0] == '+' || line[0] == '-' {
			continue
		}
		add(line)
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s: a line exceeds MaxAccountLine (%d bytes): %w", path, MaxAccountLine, err)
	}
	if limited.N == 0 {
		return fmt.Errorf("%s exceeds MaxAccountFile (%d bytes)", path, MaxAccountFile)
	}
	return nil
}
