package authn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAccounts(t *testing.T) {
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(passwd, "root:x:0:0:root:/root:/bin/bash\nann:x:1000:100:Ann,,,:/home/ann:\nbad:x:no:1:::\n+nis::::::\nann:x:1:1::/other:/x\n")
	write(group, "root:x:0:\nusers:x:100:ann\nlab:x:50:ann,nobodyhere\nlab2:x:50:\n")
	now := time.Unix(1000, 0)
	a := NewAccounts(passwd, group, func() time.Time { return now })

	ann, err := a.ByUID(1000)
	if err != nil {
		t.Fatal(err)
	}
	want := &Account{UID: 1000, GID: 100, User: "ann", Group: "users", Home: "/home/ann", Shell: "/bin/sh",
		Groups: []uint32{50, 100}, GroupNames: []string{"lab", "users"}}
	if !reflect.DeepEqual(ann, want) {
		t.Errorf("got %+v, want %+v", ann, want)
	}
	if _, err := a.ByName("bad"); !errors.Is(err, ErrNoAccount) {
		t.Errorf("a broken line made a user: %v", err)
	}
	if gid, ok := a.GID("lab"); !ok || gid != 50 {
		t.Errorf("GID(lab) = %d, %v", gid, ok)
	}

	write(passwd, "root:x:0:0:root:/root:/bin/bash\nzoe:x:1001:100::/home/zoe:/bin/zsh\n")
	if _, err := a.ByUID(1001); !errors.Is(err, ErrNoAccount) {
		t.Errorf("the table was read again before its time: %v", err)
	}
	now = now.Add(accountTTL)
	if zoe, err := a.ByUID(1001); err != nil || zoe.Shell != "/bin/zsh" {
		t.Errorf("new user not found after the time to live: %v %v", zoe, err)
	}
	if err := os.Remove(passwd); err != nil {
		t.Fatal(err)
	}
	now = now.Add(accountTTL)
	if _, err := a.ByUID(1001); err != nil {
		t.Errorf("a vanished file took the table along: %v", err)
	}
}

func TestAccountLimits(t *testing.T) {
	long := strings.Repeat("a", MaxAccountLine+1)
	err := scanLines(strings.NewReader(long), "group", func(string) {})
	if err == nil || !strings.Contains(err.Error(), "MaxAccountLine") {
		t.Errorf("a line over the limit: %v", err)
	}
	n := 0
	if err := scanLines(strings.NewReader("#c\n\nx:y\n"), "group", func(string) { n++ }); err != nil || n != 1 {
		t.Errorf("n = %d, err = %v", n, err)
	}
}

func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0::/root:/bin/sh\n", "root:x:0:root,ann\n")
	f.Add("a:b:c", "::::")
	f.Fuzz(func(t *testing.T, passwd, group string) {
		table := &accountTable{byUID: map[uint32]*Account{}, byName: map[string]*Account{},
			groupNames: map[uint32]string{}, gids: map[string]uint32{}}
		for _, part := range []struct {
			text string
			add  func(string)
		}{{passwd, table.addUser}, {group, table.addGroup}} {
			if err := scanLines(strings.NewReader(part.text), "file", part.add); err != nil {
				return
			}
		}
		for _, acc := range table.byName {
			table.finish(acc)
			for i := 1; i < len(acc.Groups); i++ {
				if acc.Groups[i-1] >= acc.Groups[i] {
					t.Fatal(fmt.Sprint("groups not ascending: ", acc.Groups))
				}
			}
		}
	})
}
