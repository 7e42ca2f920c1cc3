//go:build !faults

package fault

import "time"

// Enabled tells whether this is a build that can be broken.
const Enabled = false

// Point is a place where a test may break the program. The error is what the test put there; nil
// otherwise.
func Point(string) error { return nil }

// Now is the wall clock.
func Now() time.Time { return time.Now() }

// BootID is the host's boot id unless a test says otherwise.
func BootID(real string) string { return real }
