package server

import (
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Verbs of changes.
const (
	verbAdd    = "add"
	verbModify = "modify"
	verbDelete = "delete"
	verbCreate = "create"
	verbUpdate = "update"
)

// needsSched refuses what older controllers of the cluster do not know yet.
func needsSched(view state.Viewer, what string) *ctldpb.Refusal {
	if have := view.Feature(); have < state.FeatureSched {
		return refusalOf("ESLURM_NOT_SUPPORTED", fmt.Sprintf("%s need feature level %d; the cluster is at %d until all of its controllers know that (gctl show controllers)",
			what, state.FeatureSched, have))
	}
	return nil
}

// thinkers is how many answers that take a round of planning are worked out at a time: the others wait.
const thinkers = 1
