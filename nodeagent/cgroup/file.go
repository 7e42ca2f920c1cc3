package cgroup

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// writeFile writes a control file with one write call: the kernel takes each call as one order.
func writeFile(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// writeBack writes a limit and reads it again: some kernels take a value without an error and keep
// another.
func writeBack(path, value string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	var buf [4096]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return &os.PathError{Op: "read", Path: path, Err: err}
	}
	if got := strings.TrimSpace(string(buf[:n])); got != value {
		return fmt.Errorf("%s: wrote %q, reads %q", path, value, got)
	}
	return nil
}

func readTrim(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

// pageFloor is bytes rounded down to whole pages, as the kernel keeps memory limits.
func pageFloor(bytes int64) string {
	page := int64(os.Getpagesize())
	return strconv.FormatInt(max(bytes/page, 1)*page, 10)
}
