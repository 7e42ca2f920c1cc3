package authn

import "slices"

// Service names, as the protobuf packages have them.
const (
	ControllerService = "/tensorgrid.ctld.Controller/"
	NodeService       = "/tensorgrid.node.Node/"
	PeerService       = "/tensorgrid.peer.Peer/"
	EnrollService     = "/tensorgrid.node.Enroll/"
	LoginService      = "/tensorgrid.step.Login/"

	joinMethod = EnrollService + "Join"
)

// Sets of roles that rows name. Raising somebody to operator never takes a user's right away.
var (
	people    = []Role{RoleUser, RoleOperator, RoleAdmin}
	anybody   = []Role{RoleUser, RoleOperator, RoleAdmin, RoleWallet} // whoever is known by anything at all
	operators = []Role{RoleOperator, RoleAdmin}
	admins    = []Role{RoleAdmin}
	nodes     = []Role{RoleNode}
	peers     = []Role{RoleCtld}
	daemons   = []Role{RoleNode, RoleCtld, RoleLogin}
	strangers = []Role{RoleNobody}
)

// row is who may call a method, and the class that a token needs for it.
type row struct {
	roles []Role
	class Class
}

// methods is the one table of who may call what. A method without a row is refused for everybody,
// and a test fails. Rows say who may call at all; what of the data a caller may see or change is
// decided by the owner rules (MaySeeJob, MayChange).
var methods = map[string]row{
	ControllerService + "Submit":          {people, ClassJobs},
	ControllerService + "SubmitBatch":     {people, ClassJobs},
	ControllerService + "PutBlob":         {people, ClassJobs},
	ControllerService + "ListJobs":        {people, ClassRead},
	ControllerService + "GetScript":       {people, ClassRead},
	ControllerService + "WaitJob":         {people, ClassRead},
	ControllerService + "Cancel":          {people, ClassJobs},
	ControllerService + "Control":         {people, ClassJobs},
	ControllerService + "UpdateJob":       {people, ClassJobs},
	ControllerService + "ListNodes":       {anybody, ClassRead},
	ControllerService + "UpdateNode":      {operators, ClassAdmin},
	ControllerService + "ListPartitions":  {anybody, ClassRead},
	ControllerService + "UpdatePartition": {operators, ClassAdmin},
	ControllerService + "ShowConfig":      {people, ClassRead},
	ControllerService + "Reconfigure":     {operators, ClassAdmin},
	ControllerService + "Ping":            {anybody, ClassRead},
	ControllerService + "JobOutput":       {people, ClassRead},

	ControllerService + "ListControllers":  {people, ClassRead},
	ControllerService + "ChangeController": {admins, ClassAdmin},
	ControllerService + "SaveSnapshot":     {admins, ClassAdmin},
	ControllerService + "CreateJoinToken":  {admins, ClassAdmin},
	ControllerService + "ListJoinTokens":   {operators, ClassRead},
	ControllerService + "RevokeJoinToken":  {admins, ClassAdmin},

	ControllerService + "StreamJobs":     {people, ClassRead},
	ControllerService + "ExplainJob":     {people, ClassRead},
	ControllerService + "ListAccounting": {people, ClassRead},
	ControllerService + "ListShares":     {people, ClassRead},
	ControllerService + "ListPriorities": {people, ClassRead},
	// A coordinator may change the accounts below theirs: the state knows who is one.
	ControllerService + "ChangeAccounting": {people, ClassAdmin},
	// Users may delete a reservation of theirs that has the flag USER_DELETE.
	ControllerService + "ChangeReservation": {people, ClassAdmin},
	ControllerService + "ListReservations":  {people, ClassRead},
	ControllerService + "ListLicenses":      {people, ClassRead},

	NodeService + "Session": {nodes, classNone},

	// The token in the request decides; a controller answers it on the port for users only.
	joinMethod:              {strangers, classNone},
	EnrollService + "Renew": {daemons, classNone},

	PeerService + "Forward":   {peers, classNone},
	PeerService + "ReadIndex": {peers, classNone},
	PeerService + "Status":    {peers, classNone},
	PeerService + "Rejoin":    {peers, classNone},

	// Served by a login host to those whom its kernel vouches for.
	LoginService + "Mint": {people, classNone},
}

// Allowed tells whether a role may call a method ("/package.Service/Method").
func Allowed(method string, role Role) bool {
	return slices.Contains(methods[method].roles, role)
}

// Known tells whether a method has a row.
func Known(method string) bool {
	_, ok := methods[method]
	return ok
}

// Require lists the roles that may call a method; nil when it has no row.
func Require(method string) []Role { return slices.Clone(methods[method].roles) }

// ClassOf is the least class of a token for a method; ok is false when no token is good for it.
func ClassOf(method string) (c Class, ok bool) {
	c = methods[method].class
	return c, c.Valid()
}
