package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// Defaults of Config.
const (
	DefaultHeartbeatTimeout = 500 * time.Millisecond
	DefaultSnapshotBytes    = 256 << 20
	// MaxVoters bounds the list of controllers: more voters make each write slower and nothing safer.
	MaxVoters = 7
)

// Settings of raft that are not a site's to choose. MaxAppendEntries counts entries, not bytes:
// with entries of 128 KiB 32 of them are 4 MiB a message, and the cache and the tail kept behind
// a snapshot are bounded by the same arithmetic (16 MiB and 64 MiB).
const (
	maxAppendEntries = 32
	logCacheEntries  = 128
	trailingLogs     = 512
	snapshotsKept    = 2
	commitTimeout    = 20 * time.Millisecond
	transportTimeout = 10 * time.Second
	transportPool    = 3
	closeGrace       = 5 * time.Second
)

// Voter is one controller of the cluster: its name (raft's server id) and the address of its
// raft port.
type Voter struct{ Name, Addr string }

// Config is what a replica needs from its surroundings. Fields without a default must be set.
type Config struct {
	// Name is this controller's; it must be among the voters.
	Name string
	// Voters are all controllers. A replica whose folder is empty starts the cluster from this list,
	// so it must be the same on all of them; the addresses are used on every start, the names only
	// on the first.
	Voters []Voter
	// Dir is this replica's own folder; it is made with mode 0700.
	Dir string
	// Listener takes raft's connections; Close closes it.
	Listener net.Listener
	// Dial connects to a voter's raft port. It must authenticate the other side as a controller.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Peers gives the client by which a follower asks the leader for its read index.
	Peers func(name string) (peerpb.PeerClient, error)
	// Now stamps the entries.
	Now func() time.Time
	// Logger takes raft's messages from RaftLevel up, and the replica's own.
	Logger    *slog.Logger
	RaftLevel slog.Level
	// HeartbeatTimeout is how long a follower waits for the leader before it stands for election
	// (default 500 ms); losing the leader costs about twice that.
	HeartbeatTimeout time.Duration
	// SnapshotBytes of applied entries start a snapshot (default 256 MiB), or as many as the last
	// snapshot was long if that is more.
	SnapshotBytes int64
	// Feature is the level that the entries are written with (default 1).
	Feature uint32

	// stores replaces the disk in tests.
	stores func() (*stores, error)
}

// withDefaults checks the configuration and fills in the defaults. All faults are reported at once.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	missing := func(absent bool, what string) {
		if absent {
			errs = append(errs, fmt.Errorf("replica: %s is not set", what))
		}
	}
	missing(c.Name == "", "Name")
	missing(c.Dir == "" && c.stores == nil, "Dir")
	missing(c.Listener == nil, "Listener")
	missing(c.Dial == nil, "Dial")
	missing(c.Peers == nil, "Peers")
	missing(c.Now == nil, "Now")
	missing(c.Logger == nil, "Logger")
	if len(c.Voters) > MaxVoters {
		errs = append(errs, fmt.Errorf("replica: %d voters exceed the limit of %d", len(c.Voters), MaxVoters))
	}
	if _, ok := c.addr(c.Name); !ok {
		errs = append(errs, fmt.Errorf("replica: %q is not among the voters", c.Name))
	}
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = DefaultHeartbeatTimeout
	}
	if c.HeartbeatTimeout < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("replica: heartbeat timeout %v is under 10 ms", c.HeartbeatTimeout))
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = DefaultSnapshotBytes
	}
	if c.SnapshotBytes < 0 {
		errs = append(errs, fmt.Errorf("replica: snapshot size %d is negative", c.SnapshotBytes))
	}
	if c.Feature == 0 {
		c.Feature = 1
	}
	return c, errors.Join(errs...)
}

// addr gives the raft address of a voter.
func (c Config) addr(name string) (string, bool) {
	for _, v := range c.Voters {
		if v.Name == name {
			return v.Addr, true
		}
	}
	return "", false
}

// ServerAddr implements raft.ServerAddressProvider: the configuration's addresses win over those
// in the log, so that a controller may move to another address by an edit and a restart.
func (c Config) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	a, ok := c.addr(string(id))
	if !ok {
		return "", fmt.Errorf("controller %q is not in the configuration", id)
	}
	return raft.ServerAddress(a), nil
}

// raftConfig is the library's configuration. Snapshots are started by bytes (see the FSM adapter),
// so the library's own trigger by counts is put out of reach.
func (c Config) raftConfig(notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Name)
	rc.HeartbeatTimeout = c.HeartbeatTimeout
	rc.ElectionTimeout = c.HeartbeatTimeout
	rc.LeaderLeaseTimeout = c.HeartbeatTimeout * 8 / 10
	rc.CommitTimeout = min(commitTimeout, c.HeartbeatTimeout/2)
	rc.MaxAppendEntries = maxAppendEntries
	rc.BatchApplyCh = true
	rc.ShutdownOnRemove = true
	rc.TrailingLogs = trailingLogs
	rc.SnapshotThreshold = 1 << 62
	rc.SnapshotInterval = 24 * time.Hour
	rc.NoLegacyTelemetry = true
	rc.NotifyCh = notify
	rc.Logger = newRaftLogger(c.Logger, c.RaftLevel)
	return rc
}

// cluster is the voters as the first entry of an empty log.
func (c Config) cluster() raft.Configuration {
	var rc raft.Configuration
	for _, v := range c.Voters {
		rc.Servers = append(rc.Servers, raft.Server{
			Suffrage: raft.Voter,
			ID:       raft.ServerID(v.Name),
			Address:  raft.ServerAddress(v.Addr),
		})
	}
	return rc
}
