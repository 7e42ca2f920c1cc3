package server

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Bounds of enrolment.
const (
	defaultTTL = time.Hour
	leastTTL   = time.Minute
	maxCSR     = 4 << 10 // bytes
	joinTries  = 64      // Join calls under way at one time
	joinMethod = authn.EnrollService + "Join"
)

// ErrNoIssuer: this controller does not have the CA's key.
var ErrNoIssuer = errors.New("this controller has no issuer key")

// Issuer signs certificates of the cluster.
type Issuer interface {
	// CA gives the certificate that Sign signs with. The error wraps ErrNoIssuer when there is no key.
	CA() (*x509.Certificate, error)
	// Sign gives a certificate for the key of a request (DER); errors about the request wrap authn.ErrCSR.
	Sign(csr []byte, role authn.Role, name string, life time.Duration) (*x509.Certificate, error)
}

// issuerCA gives the CA's certificate, or says in words why this controller gives no certificates.
func (s *Server) issuerCA() (*x509.Certificate, error) {
	if s.Issuer == nil {
		return nil, s.noIssuer(ErrNoIssuer)
	}
	ca, err := s.Issuer.CA()
	if err != nil {
		return nil, s.noIssuer(err)
	}
	return ca, nil
}

func (s *Server) noIssuer(err error) error {
	return refuse("ESLURM_DISABLED", fmt.Sprintf("controller %s gives no certificates: %v; put the CA's key where IssuerKey says on every controller, or use gctl pki issue", s.Name, err))
}

// CreateJoinToken makes a token with which daemons get their first certificate. Only the hash of its
// secret goes into the log.
func (s *Server) CreateJoinToken(ctx context.Context, req *ctldpb.CreateJoinTokenRequest) (*ctldpb.CreateJoinTokenResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if s.Log.View().Feature() < state.FeatureMembers {
		return nil, refuse("ESLURM_DISABLED", notYet)
	}
	ttl := time.Duration(req.TtlMs) * time.Millisecond
	most := time.Duration(state.MaxTokenLife) * time.Millisecond
	switch {
	case req.TtlMs == 0:
		ttl = defaultTTL
	case req.TtlMs < leastTTL.Milliseconds() || req.TtlMs > state.MaxTokenLife:
		return nil, refuse("ESLURM_INVALID_TIME_VALUE", fmt.Sprintf("a token that lives %v: from %v to %v was expected", time.Duration(req.TtlMs)*time.Millisecond, leastTTL, most))
	}
	role := req.Role
	if role == "" {
		role = state.TokenNode
	}
	ca, err := s.issuerCA()
	if err != nil {
		return nil, err
	}
	token, err := s.newToken(ca)
	if err != nil {
		return nil, grpcstatus.Error(codes.Internal, err.Error())
	}
	hash := token.SecretHash()
	expires := s.Now().Add(ttl).UnixMilli()
	err = s.command(ctx, &logpb.Command{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{
		Id: token.ID, SecretSha256: hash[:], Role: role, Names: req.Names, ExpiresMs: expires, Uses: req.Uses, Caller: toLogCaller(c)}}})
	if err != nil {
		return nil, err
	}
	return &ctldpb.CreateJoinTokenResponse{Token: token.String(), Id: token.ID, ExpiresMs: expires}, nil
}

func (s *Server) newToken(ca *x509.Certificate) (authn.JoinToken, error) {
	var id [8]byte
	if _, err := io.ReadFull(s.Rand, id[:]); err != nil {
		return authn.JoinToken{}, fmt.Errorf("make a join token: %w", err)
	}
	return authn.NewJoinToken(hex.EncodeToString(id[:]), ca, s.Rand)
}

// command proposes one command and gives its refusal as an error.
func (s *Server) command(ctx context.Context, cmd *logpb.Command) error {
	res, err := s.Log.Propose(ctx, cmd)
	if err != nil {
		return logError(err)
	}
	if r := res[0].Refused; r != nil {
		return refusalError(fromFSM(r))
	}
	return nil
}

// ListJoinTokens shows the tokens that are remembered, without their secrets, which nobody has kept.
func (s *Server) ListJoinTokens(ctx context.Context, _ *ctldpb.ListJoinTokensRequest) (*ctldpb.ListJoinTokensResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	view, _, err := s.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	out := &ctldpb.ListJoinTokensResponse{}
	for t := range view.JoinTokens() {
		by := t.User
		if by == "" {
			by = fmt.Sprint(t.UID)
		}
		out.Tokens = append(out.Tokens, &ctldpb.JoinToken{Id: t.ID, Role: t.Role, Names: t.Names, ExpiresMs: t.Expires, Uses: t.Uses,
			UsedBy: t.UsedBy, CreatedBy: by, CreatedMs: t.Created, Revoked: t.Revoked})
	}
	return out, nil
}

// RevokeJoinToken ends a token before its time.
func (s *Server) RevokeJoinToken(ctx context.Context, req *ctldpb.RevokeJoinTokenRequest) (*ctldpb.RevokeJoinTokenResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if s.Log.View().Feature() < state.FeatureMembers {
		return nil, refuse("ESLURM_DISABLED", notYet)
	}
	err = s.command(ctx, &logpb.Command{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{Id: req.Id, Caller: toLogCaller(c)}}})
	if err != nil {
		return nil, err
	}
	return &ctldpb.RevokeJoinTokenResponse{}, nil
}

// tokenID is the public part of a join token's text; "" when it is none.
func tokenID(text string) string {
	t, err := authn.ParseJoinToken(text)
	if err != nil {
		return ""
	}
	return t.ID
}

// enroll implements nodepb.EnrollServer on one server.
type enroll struct {
	nodepb.UnimplementedEnrollServer
	*Server
}

// Enroll is the service that gives certificates to daemons.
func (s *Server) Enroll() nodepb.EnrollServer { return enroll{Server: s} }

// Join implements nodepb.EnrollServer: whoever shows a token gets the certificate that it is for. The
// leader decides, so that a token is used once whichever controller is asked.
func (e enroll) Join(ctx context.Context, req *nodepb.JoinRequest) (*nodepb.JoinResponse, error) {
	s := e.Server
	nobody := authn.Caller{Role: authn.RoleNobody}
	if _, err := readJoin(req); err != nil { // strangers' nonsense is not carried to the leader
		s.record(ctx, joinMethod, nobody, "", req, nil, err)
		return nil, err
	}
	select {
	case s.joining <- struct{}{}:
		defer func() { <-s.joining }()
	default:
		return nil, refuse(codeBusy, "too many daemons join at one time; try again soon")
	}
	resp, err := s.atLeaderAs(ctx, nobody, false, func(ctx context.Context) (any, error) {
		resp, err := s.join(ctx, req)
		s.record(ctx, joinMethod, nobody, "", req, nil, err)
		return resp, err
	}, func(ctx context.Context, peer peerpb.PeerClient, c authn.Caller) (any, error) {
		return s.send(ctx, peer, joinMethod, req, c)
	})
	if err != nil {
		return nil, err
	}
	return resp.(*nodepb.JoinResponse), nil
}

// readJoin looks at what a request has to be, whatever the cluster knows.
func readJoin(req *nodepb.JoinRequest) (authn.JoinToken, error) {
	token, err := authn.ParseJoinToken(req.Token)
	switch {
	case err != nil:
		return token, refuse("ESLURM_JOIN_TOKEN_INVALID", err.Error())
	case len(req.Csr) > maxCSR:
		return token, refuse(codeLimit, fmt.Sprintf("the certificate request has %d bytes, the limit is %d", len(req.Csr), maxCSR))
	case len(req.Name) > maxName:
		return token, refuse(codeLimit, fmt.Sprintf("the name has %d bytes, the limit is %d", len(req.Name), maxName))
	}
	return token, nil
}

// join signs first and takes the use of the token then: a request that cannot be signed uses nothing, and
// no certificate leaves before the log holds its use.
func (s *Server) join(ctx context.Context, req *nodepb.JoinRequest) (*nodepb.JoinResponse, error) {
	token, err := readJoin(req)
	if err != nil {
		return nil, err
	}
	view := s.Log.View()
	if view.Feature() < state.FeatureMembers {
		return nil, refuse("ESLURM_DISABLED", notYet)
	}
	// Whether the token may be used is the log's to say; but strangers who guess get nothing into it.
	known := view.JoinToken(token.ID)
	if known == nil || !token.Matches(known.Secret[:]) {
		return nil, refuse("ESLURM_JOIN_TOKEN_INVALID", "no token has this id and secret; it may be mistyped, or forgotten because it ended more than a day ago")
	}
	ca, err := s.issuerCA()
	if err != nil {
		return nil, err
	}
	if authn.CAFingerprint(ca) != token.CAFP { // the daemon would refuse the answer when the token is used up
		return nil, refuse("ESLURM_JOIN_TOKEN_INVALID", "it was made before the cluster's CA was replaced; make another with gctl node token")
	}
	role := known.Role
	cert, err := s.sign(req.Csr, authn.Role(role), req.Name)
	if err != nil {
		return nil, err
	}
	hash := token.SecretHash()
	err = s.command(ctx, &logpb.Command{Of: &logpb.Command_UseJoinToken{UseJoinToken: &logpb.UseJoinToken{
		Id: token.ID, SecretSha256: hash[:], Role: role, Name: req.Name}}})
	if err != nil {
		return nil, err
	}
	s.Logger.Info("a daemon joined", "role", role, "name", req.Name, "token", token.ID)
	return &nodepb.JoinResponse{Certificate: cert.Raw, Ca: ca.Raw, Cluster: s.Config().ClusterName, Role: role}, nil
}

func (s *Server) sign(csr []byte, role authn.Role, name string) (*x509.Certificate, error) {
	if len(csr) > maxCSR {
		return nil, refuse(codeLimit, fmt.Sprintf("the certificate request has %d bytes, the limit is %d", len(csr), maxCSR))
	}
	cert, err := s.Issuer.Sign(csr, role, name, s.Config().CertLife)
	switch {
	case errors.Is(err, ErrNoIssuer):
		return nil, s.noIssuer(err)
	case err != nil:
		return nil, refuse(codeInvalid, err.Error())
	}
	return cert, nil
}

// Renew implements nodepb.EnrollServer: a daemon with a good certificate gets another for the same role and
// name. Any controller that has the issuer key answers.
func (e enroll) Renew(ctx context.Context, req *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
	c, _ := authn.FromContext(ctx)
	resp, err := e.renew(c, req)
	e.record(ctx, authn.EnrollService+"Renew", c, "", nil, nil, err)
	return resp, err
}

func (e enroll) renew(c authn.Caller, req *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
	if !e.belongs(c) {
		return nil, refuse("ESLURM_ACCESS_DENIED", fmt.Sprintf("there is no %s %q in this cluster any more; its certificate ends by itself", c.Role, clipWord(c.Name)))
	}
	if _, ok := e.renewals.admit(whose(c, ""), false, time.Now()); !ok { // each has its line in the audit log
		return nil, refuse(codeBusy, fmt.Sprintf("%s %s renews its certificate too often", c.Role, c.Name))
	}
	ca, err := e.issuerCA()
	if err != nil {
		return nil, err
	}
	cert, err := e.sign(req.Csr, c.Role, c.Name)
	if err != nil {
		return nil, err
	}
	return &nodepb.JoinResponse{Certificate: cert.Raw, Ca: ca.Raw, Cluster: e.Config().ClusterName, Role: string(c.Role)}, nil
}

// belongs tells whether a daemon is still one of the cluster's: a certificate of one that was taken out
// must not live for ever.
func (e enroll) belongs(c authn.Caller) bool {
	switch c.Role {
	case authn.RoleNode:
		return e.Log.View().Node(c.Name) != nil
	case authn.RoleLogin:
		return slices.Contains(e.Config().LoginNodes, c.Name)
	case authn.RoleCtld:
		return slices.ContainsFunc(e.places(e.Log.View()), func(p state.Controller) bool { return p.Name == c.Name })
	}
	return false
}
