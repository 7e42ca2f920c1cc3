package discover

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFile bounds one file of /proc or /sys: cpuinfo of 4096 processors fits.
const maxFile = 8 << 20

// Host reads one machine; tests hand in trees of their own.
type Host struct {
	Proc fs.FS
	Sys  fs.FS
}

// Local is the machine that we run on.
func Local() Host { return Host{Proc: os.DirFS("/proc"), Sys: os.DirFS("/sys")} }

// Memory gives the total and the available memory in bytes.
func (h Host) Memory() (total, available int64, err error) {
	text, err := read(h.Proc, "meminfo")
	if err != nil {
		return 0, 0, err
	}
	total, err = meminfoField(text, "MemTotal")
	if err != nil {
		return 0, 0, err
	}
	// Kernels before 3.14 have no MemAvailable; what is free is then the best that is known.
	if available, err = meminfoField(text, "MemAvailable"); err != nil {
		available, err = meminfoField(text, "MemFree")
	}
	return total, available, err
}

func meminfoField(text []byte, name string) (int64, error) {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(name+":"))
		if !ok {
			continue
		}
		f := strings.Fields(string(rest))
		if len(f) != 2 || f[1] != "kB" {
			break
		}
		kb, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil || kb < 0 || kb > 1<<52 {
			break
		}
		return kb << 10, nil
	}
	return 0, fmt.Errorf("meminfo: no usable %s", name)
}

// Load gives the load average of the last minute.
func (h Host) Load() (float64, error) {
	text, err := read(h.Proc, "loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || load < 0 {
		return 0, fmt.Errorf("loadavg: %q is no load", first)
	}
	return load, nil
}

// BootID gives the kernel's id of this boot; a node that comes with a new one was restarted.
func (h Host) BootID() (string, error) {
	text, err := read(h.Proc, "sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if len(id) != 36 {
		return "", fmt.Errorf("boot_id: %q is no id", id)
	}
	return id, nil
}

// BootTime gives when the host was booted, in Unix ms.
func (h Host) BootTime() (int64, error) {
	text, err := read(h.Proc, "stat")
	if err != nil {
		return 0, err
	}
	scan := bufio.NewScanner(bytes.NewReader(text))
	scan.Buffer(nil, maxFile)
	for scan.Scan() {
		if rest, ok := strings.CutPrefix(scan.Text(), "btime "); ok {
			sec, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("stat: btime: %w", err)
			}
			return sec * 1000, nil
		}
	}
	return 0, errors.New("stat: no btime")
}

// System gives the kernel, as "Linux 6.1.0 #1 SMP ...", and the machine's architecture, "x86_64".
func System() (kernel, arch string, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", "", fmt.Errorf("uname: %w", err)
	}
	text := unix.ByteSliceToString
	return text(u.Sysname[:]) + " " + text(u.Release[:]) + " " + text(u.Version[:]), text(u.Machine[:]), nil
}

// Disk gives the size in bytes of the file system that holds path.
func Disk(path string) (int64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			return int64(st.Blocks) * int64(st.Bsize), nil
		}
		if err != unix.EINTR {
			return 0, fmt.Errorf("statfs %s: %w", path, err)
		}
	}
}

func read(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: over the limit of %d bytes", name, maxFile)
	}
	return data, nil
}
