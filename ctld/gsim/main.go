// Command gsim replays recorded workloads through the controller's scheduler in virtual time, and says what would be if a
// live cluster's policy or nodes were others.
package main

import (
	"os"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/command"
)

func main() { os.Exit(command.Main(os.Args[1:], os.Stdout, os.Stderr)) }
