package place

// Lack is a set of things that a node does not have for a shape.
type Lack uint16

// What can be missing on a node. Those from LackAllowed on no end of a run brings.
const (
	LackCPUs     Lack = 1 << iota // too few CPUs free
	LackMem                       // too little memory free
	LackGres                      // generic resources are taken
	LackEmpty                     // whole nodes were asked and something runs there, or an exclusive run has it
	LackUser                      // another user's runs are there
	LackAllowed                   // excluded, or not among the nodes named
	LackTmp                       // too little temporary disk
	LackCores                     // too few sockets, cores a socket or threads a core
	LackFeatures                  // the constraint
	LackSize                      // it would be too small even when empty
)

// Lacks tells what node n at position i, with this room, does not have for the shape; 0 when it fits.
func (s *Shape) Lacks(i int, n *Node, r *Room) Lack {
	l := s.static(i, n)
	if s.Fit(n, r) > 0 {
		return l
	}
	if whole := WholeRoom(n); s.Fit(n, &whole) == 0 {
		l |= LackSize
	}
	if r.Shut || s.exclusive && (r.Runs > 0 || r.CPUs < n.CPUs) {
		l |= LackEmpty
	}
	if r.Owner > 0 && r.Owner != int64(s.uid)+1 || s.ownNodes && r.User != 0 && r.User != int64(s.uid)+1 {
		l |= LackUser
	}
	if !s.gresFit(n, r) {
		l |= LackGres
	}
	bare := *s
	bare.gres, bare.exclusive, bare.ownNodes = nil, false, false
	bare.memNode, bare.maxMem, bare.maxMemCPU = 1, 0, 0
	have := Room{CPUs: r.CPUs, Mem: max(n.Mem, 1)}
	if bare.Fit(n, &have) == 0 {
		l |= LackCPUs
	}
	bare = *s
	bare.gres, bare.exclusive, bare.ownNodes = nil, false, false
	have = Room{CPUs: n.CPUs, Mem: r.Mem}
	if bare.Fit(n, &have) == 0 {
		l |= LackMem
	}
	if l == 0 {
		l = LackMem // CPUs and memory are there, but not for the same tasks
	}
	return l
}
