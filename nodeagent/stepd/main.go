// Command gstepd minds one step of a job. The launcher starts it; it is of no use by hand.
package main

import (
	"os"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

func main() { os.Exit(shepherd.Main(os.Args[1:], time.Now)) }
