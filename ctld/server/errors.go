package server

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Codes of our own, where Slurm has none.
const (
	codeNotLeader = "NOT_LEADER"      // nothing was done
	codeUnknown   = "OUTCOME_UNKNOWN" // it may have been done: repeat under the same key
	codeNoLeader  = "NO_LEADER"
	codeBusy      = "BUSY"
	codeLimit     = "LIMIT"
	codeInvalid   = "INVALID"
	codeConfig    = "INVALID_CONFIG"
	codeKeyReused = "KEY_REUSED"
)

// refusals is the one table of refusal codes: Slurm's line and the gRPC code it travels under.
var refusals = map[string]struct {
	text string
	grpc codes.Code
}{
	"ESLURM_INVALID_PARTITION_NAME":            {"Invalid partition name specified", codes.InvalidArgument},
	"ESLURM_DEFAULT_PARTITION_NOT_SET":         {"No partition specified or system default partition", codes.InvalidArgument},
	"ESLURM_ACCESS_DENIED":                     {"Access/permission denied", codes.PermissionDenied},
	"ESLURM_USER_ID_MISSING":                   {"Invalid user id", codes.PermissionDenied},
	"ESLURM_GROUP_ID_MISSING":                  {"Invalid group id", codes.PermissionDenied},
	"ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE": {"Requested node configuration is not available", codes.InvalidArgument},
	"ESLURM_INVALID_NODE_NAME":                 {"Invalid node name specified", codes.InvalidArgument},
	"ESLURM_INVALID_NODE_COUNT":                {"Node count specification invalid", codes.InvalidArgument},
	"ESLURM_INVALID_TIME_LIMIT":                {"Requested time limit is invalid (missing or exceeds some limit)", codes.InvalidArgument},
	"ESLURM_INVALID_TIME_VALUE":                {"Invalid time specified", codes.InvalidArgument},
	"ESLURM_INVALID_ARRAY":                     {"Invalid job array specification", codes.InvalidArgument},
	"ESLURM_INVALID_JOB_ID":                    {"Invalid job id specified", codes.NotFound},
	"ESLURM_INVALID_ACCOUNT":                   {"Invalid account or account/partition combination specified", codes.InvalidArgument},
	"ESLURM_INVALID_QOS":                       {"Invalid qos specification", codes.InvalidArgument},
	"ESLURM_INVALID_GRES":                      {"Invalid generic resource (gres) specification", codes.InvalidArgument},
	"ESLURM_INVALID_FEATURE":                   {"Invalid feature specification", codes.InvalidArgument},
	"ESLURM_INVALID_TASK_MEMORY":               {"Memory required by task is not available", codes.InvalidArgument},
	"ESLURM_DEPENDENCY":                        {"Job dependency problem", codes.InvalidArgument},
	"ESLURM_ALREADY_DONE":                      {"Job/step already completing or completed", codes.FailedPrecondition},
	"ESLURM_JOB_SCRIPT_MISSING":                {"Job script not specified", codes.InvalidArgument},
	"ESLURM_MAX_JOB_COUNT":                     {"Slurm temporarily unable to accept job, sleeping and retrying", codes.ResourceExhausted},
	"ESLURM_ACCOUNTING_POLICY":                 {"Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", codes.ResourceExhausted},
	"ESLURM_PARTITION_NOT_AVAIL":               {"Required partition not available (inactive or drain)", codes.FailedPrecondition},
	"ESLURM_NOT_SUPPORTED":                     {"Requested operation not supported on this system", codes.Unimplemented},
	"ESLURM_INVALID_NODE_STATE":                {"Invalid node state specified", codes.InvalidArgument},
	"ESLURM_MISSING_REASON":                    {"You must specify a reason when DOWNING a node", codes.InvalidArgument},
	"ESLURM_DISABLED":                          {"Requested operation is presently disabled", codes.FailedPrecondition},
	"ESLURM_PATHNAME_TOO_LONG":                 {"Pathname of a file, directory or other parameter too long", codes.InvalidArgument},
	"ESLURM_RESERVATION_INVALID":               {"Requested reservation is invalid", codes.InvalidArgument},
	"ESLURM_RESERVATION_ACCESS":                {"Access denied to requested reservation", codes.PermissionDenied},
	"ESLURM_RESERVATION_NAME_DUP":              {"Duplicate reservation name", codes.AlreadyExists},
	"ESLURM_INVALID_LICENSES":                  {"Invalid license specification", codes.InvalidArgument},
	"ESLURM_BAD_TASK_COUNT":                    {"Task count specification invalid", codes.InvalidArgument},
	"ESLURM_NO_OUTPUT":                         {"Output of this job is not kept by its node", codes.NotFound},
	"ESLURM_INVALID_CONTROLLER":                {"Invalid controller", codes.InvalidArgument},
	"ESLURM_INVALID_JOIN_TOKEN":                {"Invalid join token", codes.InvalidArgument},
	"ESLURM_JOIN_TOKEN_INVALID":                {"Join token refused", codes.PermissionDenied},
	"ESLURM_JOIN_TOKEN_REVOKED":                {"Join token refused", codes.PermissionDenied},
	"ESLURM_JOIN_TOKEN_EXPIRED":                {"Join token refused", codes.PermissionDenied},
	"ESLURM_JOIN_TOKEN_ROLE":                   {"Join token refused", codes.PermissionDenied},
	"ESLURM_JOIN_TOKEN_NAME":                   {"Join token refused", codes.PermissionDenied},
	"ESLURM_JOIN_TOKEN_USED":                   {"Join token refused", codes.PermissionDenied},
	codeNotLeader:                              {"this controller is not the leader", codes.Unavailable},
	codeUnknown:                                {"the leader changed; the outcome is not known", codes.Unavailable},
	codeNoLeader:                               {"no controller leads at present", codes.Unavailable},
	codeBusy:                                   {"too many requests wait at the controller", codes.ResourceExhausted},
	codeLimit:                                  {"the request exceeds a limit", codes.InvalidArgument},
	codeInvalid:                                {"the request is not valid", codes.InvalidArgument},
	codeConfig:                                 {"the configuration is not valid", codes.FailedPrecondition},
	codeKeyReused:                              {"the idempotency key was used for another request", codes.AlreadyExists},
}

// refusalOf fills in the line of a code.
func refusalOf(code, why string) *ctldpb.Refusal {
	return &ctldpb.Refusal{Code: code, Text: refusals[code].text, Why: why}
}

// refuse makes the status of a refusal.
func refuse(code, why string) error { return refusalError(refusalOf(code, why)) }

// refusalError carries a refusal as a status with details, so that no client needs to read text.
func refusalError(r *ctldpb.Refusal) error {
	c := codes.FailedPrecondition
	if known, ok := refusals[r.Code]; ok {
		c = known.grpc
	}
	text := r.Text
	if r.Why != "" {
		text += ": " + r.Why
	}
	st, err := status.New(c, text).WithDetails(r)
	if err != nil {
		return status.Error(c, text)
	}
	return st.Err()
}

// RefusalOf gives the refusal that an error carries, nil when it carries none.
func RefusalOf(err error) *ctldpb.Refusal {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*ctldpb.Refusal); ok {
			return r
		}
	}
	return nil
}

func fromFSM(r *fsm.Refusal) *ctldpb.Refusal {
	return &ctldpb.Refusal{Code: r.Code, Text: r.Text, Why: r.Why}
}

func fromState(r *state.Refusal) *ctldpb.Refusal {
	return &ctldpb.Refusal{Code: r.Code, Text: r.Text, Why: r.Why}
}

func fromPartition(r *partitions.Refusal) *ctldpb.Refusal {
	return &ctldpb.Refusal{Code: r.Code, Text: r.Text, Why: r.Why}
}

// tooMany refuses a list over its limit.
func tooMany(what, limit string, n, max int) error {
	return refuse(codeLimit, fmt.Sprintf("%d %s exceed %s (%d)", n, what, limit, max))
}

// logError maps what the replica says.
func logError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, replica.ErrNotLeader):
		return refuse(codeNotLeader, "")
	case errors.Is(err, replica.ErrUnknown):
		return refuse(codeUnknown, "repeat the request under the same key")
	case errors.Is(err, replica.ErrNoLeader):
		return refuse(codeNoLeader, "")
	case errors.Is(err, replica.ErrBusy):
		return refuse(codeBusy, err.Error())
	case errors.Is(err, replica.ErrTooLarge):
		return refuse(codeLimit, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the controller did not reach a majority in time")
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the caller went away")
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

// electing tells whether an error goes away when a leader is found and nothing was done.
func electing(err error) bool {
	return errors.Is(err, replica.ErrNotLeader) || errors.Is(err, replica.ErrNoLeader)
}

// denied is the status of a call that the method table refuses.
func denied(method string, c authn.Caller) error {
	return refuse("ESLURM_ACCESS_DENIED", authn.WhyNot(method, c))
}
