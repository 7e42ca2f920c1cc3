// Command grid is every user command in one program: it is called through links named gsub, gqueue, ... or
// sbatch, squeue, ..., or as "grid gsub".
package main

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
)

func main() { os.Exit(run(os.Args)) }

func run(args []string) int {
	env := &program.Env{
		Name: filepath.Base(args[0]), Args: args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Environ: os.Environ(), UID: uint32(os.Getuid()), Now: time.Now, Sleep: time.Sleep,
		StdinTerminal: terminal(0), StdoutTerminal: terminal(1), SharedOutput: sameFile(1, 2),
		Connect: client.FromConfig,
	}
	env.Dir, _ = os.Getwd()
	return dispatch(env)
}

func terminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// sameFile tells whether two descriptors are one pipe or file, and no terminal.
func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	if unix.Fstat(a, &x) != nil || unix.Fstat(b, &y) != nil {
		return false
	}
	return x.Dev == y.Dev && x.Ino == y.Ino && x.Mode&unix.S_IFMT != unix.S_IFCHR
}
