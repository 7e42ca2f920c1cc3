package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
)

// StateFolder is the agent's own folder in the spool.
const StateFolder = "agent"

// controllersFile holds, in the agent's folder, which controllers the last leader named: one that has
// joined since the configuration was written may be the only one that is left.
const controllersFile = "controllers.json"

// Limits of what a leader says of controllers.
const (
	maxControllers     = 32
	maxControllerName  = 64       // bytes
	maxControllerPlace = 300      // bytes of host:port
	maxControllersFile = 64 << 10 // bytes
)

// addresses lists where a leader may be found: the configuration's controllers, then those that a leader
// named besides, from a random one on.
func (a *Agent) addresses() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	for _, c := range a.cfg.Controllers {
		list = append(list, c.Address)
	}
	for _, c := range a.learned {
		if !slices.ContainsFunc(a.cfg.Controllers, func(own Controller) bool { return own.Name == c.Name }) {
			list = append(list, c.Address)
		}
	}
	from := min(int(a.d.Jitter()*float64(len(list))), len(list)-1)
	return append(list[from:len(list):len(list)], list[:from]...)
}

// addressOf prefers what the configuration says of a controller to what a leader said, and that to what
// its peer says.
func (a *Agent) addressOf(hint *notLeader) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, list := range [][]Controller{a.cfg.Controllers, a.learned} {
		for _, c := range list {
			if c.Name == hint.name {
				return c.Address
			}
		}
	}
	return hint.address
}

// learn takes the controllers that a leader names, and keeps them for the next agent.
func (a *Agent) learn(named []*nodepb.ControllerAddress) {
	var list []Controller
	for _, c := range named {
		one := Controller{Name: c.GetName(), Address: c.GetAddress()}
		if one.good() && len(list) < maxControllers {
			list = append(list, one)
		}
	}
	a.mu.Lock()
	same := slices.Equal(list, a.learned)
	if len(list) > 0 {
		a.learned = list
	}
	a.mu.Unlock()
	if same || len(list) == 0 {
		return
	}
	go func() { // a disk that hangs holds no session up
		a.keeping.Lock()
		defer a.keeping.Unlock()
		a.mu.Lock()
		list := a.learned // the newest: writers come here in any order
		a.mu.Unlock()
		if err := writeControllers(a.cfg.State, list); err != nil {
			a.log.Warn("controllers not kept for the next start", "err", err)
		}
	}()
}

func (c Controller) good() bool {
	return c.Name != "" && len(c.Name) <= maxControllerName && c.Address != "" && len(c.Address) <= maxControllerPlace
}

// recall takes what an earlier agent has kept. Nothing that is wrong with it stops this one.
func (a *Agent) recall() {
	list, err := readControllers(a.cfg.State)
	if err != nil {
		a.log.Warn("controllers that were learned are not known any more", "err", err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learned = list
}

func readControllers(dir string) ([]Controller, error) {
	path := filepath.Join(dir, controllersFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, maxControllersFile+1)
	n, err := f.ReadAt(data, 0)
	if n > maxControllersFile {
		return nil, fmt.Errorf("%s is over the limit of %d bytes", path, maxControllersFile)
	}
	if n == 0 {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var list []Controller
	if err := json.Unmarshal(data[:n], &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	list = slices.DeleteFunc(list, func(c Controller) bool { return !c.good() })
	return list[:min(len(list), maxControllers)], nil
}

// writeControllers puts the list in place, whole.
func writeControllers(dir string, list []Controller) error {
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, controllersFile)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}
