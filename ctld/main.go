// Command gctld is the controller: one replica of the cluster's state machine.
package main

import (
	"os"

	"github.com/tensorgrid/tensorgrid/ctld/daemon"
)

func main() { os.Exit(daemon.Main(os.Args[1:], os.Stdout, os.Stderr)) }
