package gctl

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

func snapshotOptions() []getopt.Option {
	return []getopt.Option{{Long: "force", Help: "save: put the new backup in the place of FILE"}}
}

func snapshotWords() []subword {
	return []subword{
		{name: "save", min: 1, max: 1, options: []string{"force"}, run: (*call).snapshotSave, write: "save FILE|- [--force]"},
		{name: "inspect", min: 1, max: 1, run: (*call).snapshotInspect, write: "inspect FILE|-"},
	}
}

func (c *call) snapshotWord(g []getopt.Given, args []string) int {
	return c.choose("snapshot", snapshotWords(), g, args)
}

// snapshotSave writes a backup. A file appears under its name when all of it is on the disk and its SHA-256 is the
// one that the controller sent; until then, and after a mistake, nothing stands there.
func (c *call) snapshotSave(g given, args []string) int {
	ctx, stop := signal.NotifyContext(background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var b *client.Backup
	var err error
	name := args[0]
	if name == "-" {
		if c.env.StdoutTerminal {
			c.env.Errorf("snapshot save: a backup is no text; write it to a file or a pipe, not to a terminal")
			return 1
		}
		if !c.connect() {
			return 1
		}
		b, err = c.client.SaveSnapshot(ctx, func() (io.Writer, error) { return c.env.Stdout, nil }, false)
	} else {
		if !filepath.IsAbs(name) {
			name = filepath.Join(c.env.Dir, name)
		}
		if err := mayReplace(name, g.has("force")); err != nil {
			if errors.Is(err, errThere) {
				err = fmt.Errorf("%w, or say --force to put the new backup in its place", err)
			}
			c.env.Errorf("snapshot save: %v", err)
			return 1
		}
		if !c.connect() {
			return 1
		}
		err = saveAs(name, g.has("force"), func(f *os.File) (err error) {
			b, err = c.client.SaveSnapshot(ctx, func() (io.Writer, error) {
				_, err := f.Seek(0, io.SeekStart)
				return f, errors.Join(err, f.Truncate(0))
			}, true)
			return err
		})
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted; nothing was kept")
		}
		return c.refused("snapshot save", err)
	}
	if !c.quiet {
		c.env.Infof("%s: cluster %s, index %d, feature level %d, %d bytes, of %s", args[0], b.Cluster, b.Index, b.Feature, b.Bytes, c.clock().Time(b.TimeMS, "an unknown time"))
		c.env.Infof("sha256 %x", b.SHA256)
	}
	return 0
}

// errThere: nothing is written over a file that nobody said to replace.
var errThere = errors.New("is there already; choose another name")

// mayReplace refuses what a new file must not take the place of.
func mayReplace(name string, force bool) error {
	st, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is there and is no plain file; choose another name", name)
	case !force:
		return fmt.Errorf("%s %w", name, errThere)
	}
	return nil
}

// saveAs fills a file of mode 0600 beside name, brings it to the disk, and only then gives it the name. Without
// force a file that has come there meanwhile is left alone.
func saveAs(name string, force bool, fill func(*os.File) error) error {
	dir := filepath.Dir(name)
	var r [8]byte
	rand.Read(r[:]) // never fails: see crypto/rand
	tmp := filepath.Join(dir, "."+filepath.Base(name)+".new-"+hex.EncodeToString(r[:]))
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = rename(tmp, name, force)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func rename(tmp, name string, force bool) error {
	if force {
		return os.Rename(tmp, name)
	}
	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not offered by this file system
		if err = os.Link(tmp, name); err == nil {
			return os.Remove(tmp)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s has come there meanwhile and was left alone", name)
	}
	return err
}

// stdinFile is our standard input to the daemon: what "snapshot save -" writes to a pipe can be looked at there.
const stdinFile = "/dev/stdin"

// snapshotInspect lets gctld, which knows the format, read a file.
func (c *call) snapshotInspect(_ given, args []string) int {
	daemon, err := program.Beside("gctld")
	if err != nil {
		c.env.Errorf("snapshot inspect: %v; a backup is read by gctld --inspect FILE", err)
		return 1
	}
	name := args[0]
	if name == "-" {
		name = stdinFile
	}
	cmd := exec.Command(daemon, "--inspect="+name)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.env.Dir, c.env.Stdout, c.env.Stderr
	if name == stdinFile { // else it is not the daemon's: lines there may be commands
		cmd.Stdin = c.env.Stdin
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return 1
	}
	if err != nil {
		c.env.Errorf("snapshot inspect: %v", err)
		return 1
	}
	return 0
}

// whoami prints whom the controller takes the caller for.
func (c *call) whoami(args []string) int {
	if len(args) > 0 {
		c.env.Errorf("write: %s whoami", c.env.Name)
		return 1
	}
	res, err := c.client.Ping(context.Background())
	if err != nil {
		return c.refused("whoami", err)
	}
	who := res.Caller
	if who == nil {
		c.env.Errorf("whoami: %s (%s) is of a version that does not say; update it", res.Controller, res.Version)
		return 1
	}
	r := &record{}
	words := []string{kv("User", render.Null(who.User))}
	if who.Role != "wallet" {
		words = append(words, kv("Uid", who.Uid))
	}
	words = append(words, kv("Role", who.Role), kv("Via", who.Via))
	r.line(words...)
	if who.Login != "" {
		r.line(kv("Login", who.Login))
	}
	if who.Wallet != "" {
		r.line(kv("Wallet", who.Wallet))
	}
	r.line(kv("Cluster", res.Cluster), kv("Controller", res.Controller))
	r.write(c.env.Stdout, c.oneLine)
	return 0
}
