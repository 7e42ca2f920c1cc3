package raftbench

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profile starts a CPU profile of a child that was asked for one; end writes it and what was
// allocated.
func profile(c childSpec) (end func() error, err error) {
	if c.Shape.Profile == "" {
		return func() error { return nil }, nil
	}
	name := func(kind string) string {
		return filepath.Join(c.Shape.Profile, c.Body+"-"+c.Names[c.Index]+"."+kind)
	}
	f, err := os.Create(name("cpu"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		m, err := os.Create(name("allocs"))
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return errors.Join(f.Close(), pprof.Lookup("allocs").WriteTo(m, 0), m.Close())
	}, nil
}
