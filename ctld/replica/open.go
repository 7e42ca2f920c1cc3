package replica

import (
	"context"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Open starts this controller's replica of f's state. It returns when the state is restored from
// the newest snapshot; the log behind it is applied once a leader is there. ctx bounds the opening
// only. Entries are written with the state's feature level.
func Open(ctx context.Context, cfg Config, f *fsm.FSM) (*Replica, error) {
	return OpenMachine(ctx, cfg, fsmMachine{f})
}

// fsmMachine is the product's state machine as a Machine.
type fsmMachine struct{ *fsm.FSM }

func (m fsmMachine) View() state.Viewer { return m.Store().View() }

func (m fsmMachine) Snapshot() Snapshot { return m.FSM.Snapshot() }

func (m fsmMachine) Stamp() (feature uint32, ms int64) { return m.Store().Stamp() }
