package authn

import "slices"

// Service names, as the protobuf packages have them.
const (
	ControllerService = "/tensorgrid.ctld.Controller/"
	NodeService       = "/tensorgrid.node.Node/"
	PeerService       = "/tensorgrid.peer.Peer/"
	EnrollService     = "/tensorgrid.node.Enroll/"
)

// Sets of roles that rows name. Raising somebody to operator never takes a user's right away.
var (
	people    = []Role{RoleUser, RoleOperator, RoleAdmin}
	operators = []Role{RoleOperator, RoleAdmin}
	admins    = []Role{RoleAdmin}
	nodes     = []Role{RoleNode}
	peers     = []Role{RoleCtld}
)

// methods is the one table of who may call what. A method without a row is refused for everybody,
// and a test fails. Rows say who may call at all; what of the data a caller may see or change is
// decided by the owner rules (MaySee, MayChange).
var methods = map[string][]Role{
	ControllerService + "Submit":          people,
	ControllerService + "SubmitBatch":     people,
	ControllerService + "PutBlob":         people,
	ControllerService + "ListJobs":        people,
	ControllerService + "GetScript":       people,
	ControllerService + "WaitJob":         people,
	ControllerService + "Cancel":          people,
	ControllerService + "Control":         people,
	ControllerService + "UpdateJob":       people,
	ControllerService + "ListNodes":       people,
	ControllerService + "UpdateNode":      operators,
	ControllerService + "ListPartitions":  people,
	ControllerService + "UpdatePartition": operators,
	ControllerService + "ShowConfig":      people,
	ControllerService + "Reconfigure":     operators,
	ControllerService + "Ping":            people,
	ControllerService + "JobOutput":       people,

	ControllerService + "ListControllers":  people,
	ControllerService + "ChangeController": admins,
	ControllerService + "SaveSnapshot":     admins,
	ControllerService + "CreateJoinToken":  admins,
	ControllerService + "ListJoinTokens":   operators,
	ControllerService + "RevokeJoinToken":  admins,

	NodeService + "Session": nodes,

	// The token in the request decides; a controller answers it on the port for users only.
	EnrollService + "Join":  {RoleNobody},
	EnrollService + "Renew": {RoleNode, RoleCtld, RoleLogin},

	PeerService + "Forward":   peers,
	PeerService + "ReadIndex": peers,
	PeerService + "Status":    peers,
	PeerService + "Rejoin":    peers,
}

// Allowed tells whether a role may call a method ("/package.Service/Method").
func Allowed(method string, role Role) bool {
	return slices.Contains(methods[method], role)
}

// Known tells whether a method has a row.
func Known(method string) bool {
	_, ok := methods[method]
	return ok
}

// Require lists the roles that may call a method; nil when it has no row.
func Require(method string) []Role { return slices.Clone(methods[method]) }
