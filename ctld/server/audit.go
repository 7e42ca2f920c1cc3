package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Bounds of one line of the audit log.
const (
	auditTargets = 64
	auditWord    = 128 // bytes
)

// auditLine is one call that changed something, or that was refused for lack of rights. It holds no script,
// environment, argument or token.
type auditLine struct {
	Time       string   `json:"time"`
	Controller string   `json:"controller"` // which decided
	Method     string   `json:"method"`
	Op         string   `json:"op,omitempty"`
	UID        *uint32  `json:"uid,omitempty"` // of a person
	User       string   `json:"user,omitempty"`
	Role       string   `json:"role"`
	Name       string   `json:"name,omitempty"` // of a daemon
	Via        string   `json:"via,omitempty"`
	Login      string   `json:"login,omitempty"`
	Wallet     string   `json:"wallet,omitempty"`
	Forwarded  string   `json:"forwarded_by,omitempty"`
	Address    string   `json:"address,omitempty"`
	Targets    []string `json:"targets,omitempty"`
	More       int      `json:"more_targets,omitempty"`
	Refused    []string `json:"refused_targets,omitempty"` // those of the targets that the caller has no right to
	Outcome    string   `json:"outcome"`                   // ok, or the code of the refusal
	Suppressed int      `json:"suppressed,omitempty"`      // earlier calls that came to nothing and have no line
}

// audited lists the methods that change something, or that hand out what nobody but an admin sees.
var audited = map[string]bool{
	authn.ControllerService + "Submit": true, authn.ControllerService + "SubmitBatch": true, authn.ControllerService + "PutBlob": true,
	authn.ControllerService + "Cancel": true, authn.ControllerService + "Control": true, authn.ControllerService + "UpdateJob": true,
	authn.ControllerService + "UpdateNode": true, authn.ControllerService + "UpdatePartition": true,
	authn.ControllerService + "Reconfigure": true, authn.ControllerService + "ChangeController": true,
	authn.ControllerService + "SaveSnapshot":     true,
	authn.ControllerService + "ChangeAccounting": true, authn.ControllerService + "ChangeReservation": true,
	authn.ControllerService + "CreateJoinToken": true, authn.ControllerService + "RevokeJoinToken": true,
	joinMethod: true, authn.EnrollService + "Renew": true,
	rejoinMethod: true,
}

// auditor writes the lines.
type auditor struct {
	log  *AuditLog // nil = none is kept
	idle allowances
}

// record writes the line of one decided call, if it needs one.
func (s *Server) record(ctx context.Context, method string, c authn.Caller, from string, req, resp any, err error) {
	if s.audit.log == nil {
		return
	}
	outcome, decided := outcomeOf(err)
	denied := grpcstatus.Code(err) == codes.PermissionDenied || grpcstatus.Code(err) == codes.Unauthenticated
	if !decided || !audited[method] && !denied {
		return
	}
	line := auditLine{Time: s.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"), Controller: s.Name,
		Method: method[strings.LastIndexByte(method, '/')+1:], Role: string(c.Role), Name: c.Name, User: c.User,
		Via: c.Via, Login: c.Login, Wallet: c.Wallet, Forwarded: from, Outcome: outcome}
	if c.IsPerson() {
		uid := c.UID
		line.UID = &uid
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil && p.Addr.Network() == "tcp" {
		line.Address = p.Addr.String()
	}
	if denied || inVain(req, resp, err) {
		var ok bool
		if line.Suppressed, ok = s.audit.idle.admit(whose(c, line.Address), c.Role == authn.RoleNobody, time.Now()); !ok {
			return
		}
	}
	line.targets(req, resp)
	data, err := json.Marshal(&line)
	if err != nil {
		s.Logger.Error("a line of the audit log cannot be written", "method", method, "err", err)
		return
	}
	s.audit.log.put(append(data, '\n'))
}

// outcomeOf is the word for what became of a call. decided is false when nothing was decided here: another
// controller will be asked.
func outcomeOf(err error) (word string, decided bool) {
	if err == nil {
		return "ok", true
	}
	if r := RefusalOf(err); r != nil {
		return r.Code, r.Code != codeNotLeader && r.Code != codeNoLeader
	}
	return grpcstatus.Code(err).String(), true
}

// targets names what the call was about.
func (l *auditLine) targets(req, resp any) {
	ids := l.aboutJobs(req, resp)
	if ids == nil {
		ids = l.aboutCluster(req, resp)
	}
	if results, ok := resp.(*ctldpb.JobResults); ok && results != nil {
		ids = l.outcomes(results, ids)
	}
	l.Op = clipWord(l.Op)
	for i, id := range ids {
		if i == auditTargets {
			l.More = len(ids) - auditTargets
			break
		}
		if id != "" {
			l.Targets = append(l.Targets, clipWord(id))
		}
	}
}

// aboutJobs says what was done to which jobs; nil when the call is about something else.
func (l *auditLine) aboutJobs(req, resp any) []string {
	switch r := req.(type) {
	case *ctldpb.SubmitRequest:
		if r.TestOnly {
			l.Op = "test only"
		}
		if out, ok := resp.(*ctldpb.SubmitResponse); ok && out != nil {
			return []string{strconv.FormatUint(uint64(out.JobId), 10)}
		}
	case *ctldpb.SubmitBatchRequest:
		return submitted(resp)
	case *ctldpb.PutBlobRequest:
		l.Op = fmt.Sprintf("%d bytes", len(r.Data))
	case *ctldpb.CancelRequest:
		if l.Op = "end"; r.Signal != "" {
			l.Op = "signal " + r.Signal
		}
		return r.Filter.GetJobIds()
	case *ctldpb.ControlRequest:
		l.Op = strings.ToLower(r.Op.String())
		return r.JobIds
	case *ctldpb.UpdateJobRequest:
		l.Op = keyNames(r.Set)
		return r.JobIds
	case *ctldpb.GetScriptRequest:
		return []string{strconv.FormatUint(uint64(r.JobId), 10)}
	case *ctldpb.JobOutputRequest:
		return []string{r.JobId}
	}
	return nil
}

// aboutCluster says what was done to nodes, partitions, controllers and tokens.
func (l *auditLine) aboutCluster(req, resp any) []string {
	switch r := req.(type) {
	case *ctldpb.UpdateNodeRequest:
		l.Op = keyNames(r.Set)
		for k, v := range r.Set {
			if _, known := nodeStates[strings.ToUpper(v)]; known && strings.EqualFold(k, "state") {
				l.Op += " to " + strings.ToUpper(v)
			}
		}
		return []string{r.Names}
	case *ctldpb.UpdatePartitionRequest:
		l.Op = keyNames(r.Set)
		return []string{r.Name}
	case *ctldpb.ReconfigureRequest:
		if r.DryRun {
			l.Op = "dry run"
		}
	case *ctldpb.ChangeControllerRequest:
		if l.Op = strings.ToLower(r.Op.String()); r.Force {
			l.Op += " by force"
		}
		return []string{r.Name}
	case *ctldpb.ChangeAccountingRequest:
		if l.Op = r.Verb + " " + r.Entity; r.DryRun {
			l.Op += ", dry run"
		}
		return clauseWords(append(slices.Clone(r.Where), r.Set...))
	case *ctldpb.ChangeReservationRequest:
		l.Op = r.Verb
		if out, ok := resp.(*ctldpb.ChangeReservationResponse); ok && out != nil && r.Name == "" {
			return append([]string{out.Name}, clauseWords(r.Set)...)
		}
		return append([]string{r.Name}, clauseWords(r.Set)...)
	case *ctldpb.CreateJoinTokenRequest:
		l.Op = r.Role
		if out, ok := resp.(*ctldpb.CreateJoinTokenResponse); ok && out != nil {
			return []string{r.Names, "token " + out.Id}
		}
		return []string{r.Names}
	case *ctldpb.RevokeJoinTokenRequest:
		return []string{"token " + r.Id}
	case *nodepb.JoinRequest:
		if id := tokenID(r.Token); id != "" {
			return []string{r.Name, "token " + id}
		}
		return []string{r.Name}
	case *peerpb.RejoinRequest:
		return []string{r.Name}
	}
	return nil
}

// clauseWords writes conditions and settings as they were asked for.
func clauseWords(list []*ctldpb.Clause) []string {
	words := make([]string, 0, len(list))
	for _, c := range list {
		words = append(words, c.GetName()+c.GetOp()+c.GetValue())
	}
	return words
}

// outcomes takes the jobs that a call came to, and those among them that the caller has no right to.
func (l *auditLine) outcomes(results *ctldpb.JobResults, asked []string) []string {
	if len(results.Results) == 0 {
		return asked
	}
	ids := make([]string, 0, len(results.Results))
	for _, r := range results.Results {
		ids = append(ids, r.JobId)
		if r.Code == "ESLURM_ACCESS_DENIED" && len(l.Refused) < auditTargets {
			l.Refused = append(l.Refused, clipWord(r.JobId))
		}
	}
	return ids
}

// submitted lists the ids of a batch.
func submitted(resp any) []string {
	out, ok := resp.(*ctldpb.SubmitBatchResponse)
	if !ok || out == nil {
		return nil
	}
	var ids []string
	for _, r := range out.Results {
		if r.GetOk() != nil {
			ids = append(ids, strconv.FormatUint(uint64(r.Ok.JobId), 10))
		}
	}
	return ids
}

// keyNames lists what an update sets, without the values: they are the users' texts.
func keyNames(set map[string]string) string {
	names := make([]string, 0, len(set))
	for k := range set {
		names = append(names, clipWord(k))
		if len(names) == MaxSet {
			break
		}
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ",")
}

// clipWord makes somebody's word fit for a line: short, and without control characters, which JSON would let
// through in part to the terminal of whoever looks at the log.
func clipWord(s string) string {
	if len(s) > auditWord {
		s = s[:auditWord] + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// denied makes the error of a call that the method table refuses, and writes it down.
func (s *Server) denied(ctx context.Context, method string, c authn.Caller) error {
	err := denied(method, c)
	s.record(ctx, method, c, "", nil, nil, err)
	return err
}

// AuditStrangers writes down calls of the port for users that authentication refuses. It stands before it.
func (s *Server) AuditStrangers() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		resp, err := next(ctx, req)
		s.stranger(ctx, info.FullMethod, err)
		return resp, err
	}
}

// AuditStrangeStreams is AuditStrangers for streams.
func (s *Server) AuditStrangeStreams() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		err := next(srv, ss)
		s.stranger(ss.Context(), info.FullMethod, err)
		return err
	}
}

// stranger records what authentication alone can have answered: no good credential. Refusals of the server
// itself carry a ctldpb.Refusal and have their line.
func (s *Server) stranger(ctx context.Context, method string, err error) {
	if grpcstatus.Code(err) == codes.Unauthenticated && RefusalOf(err) == nil {
		s.record(ctx, method, authn.Caller{Role: authn.RoleNobody}, "", nil, nil, err)
	}
}

// AuditStream writes down streams that need a line. It stands behind authentication.
func (s *Server) AuditStream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		first := &firstMessage{ServerStream: ss}
		err := next(srv, first)
		c, _ := authn.FromContext(ss.Context())
		s.record(ss.Context(), info.FullMethod, c, "", first.req, nil, err)
		return err
	}
}

// firstMessage remembers the request of a stream.
type firstMessage struct {
	grpc.ServerStream
	req any
}

// RecvMsg implements grpc.ServerStream.
func (f *firstMessage) RecvMsg(m any) error {
	err := f.ServerStream.RecvMsg(m)
	if err == nil && f.req == nil {
		f.req = m
	}
	return err
}
