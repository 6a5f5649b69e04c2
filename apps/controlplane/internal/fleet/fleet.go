// Package fleet manages the regions' agents: how they join, how they prove their identity, and when they count as
// unreachable. It also deletes old rows.
//
// # Credentials
//
// An agent's credential is a sealed statement: region, issued at, expires at, and the agent's public key. Only the
// control plane's keyset can make credentials, and checking one needs no query. Each call has a proof of the private
// key, so that a copied credential is useless. The region's "not before" time revokes credentials. Every handler
// compares this time when it reads the region's row. Credentials are not stored, so they stay valid when a backup is
// restored.
//
// # Leases
//
// Each report renews its region's lease, on the database's clock. A process lets leases expire only after it has
// swept for a full TTL without a failure or a pause. Otherwise, an outage of the process or the database, in which no
// agent could renew its lease, would make regions unreachable. An expired lease makes a region unreachable, and wakes
// the workflows of its apps. It deletes nothing.
package fleet

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CredentialPrefix is the prefix of every agent credential, by which people and secret scanners recognize it.
const CredentialPrefix = "wla_"

// CredentialTTL is how long a credential is valid by default. Agents renew it after half of this time.
const CredentialTTL = 24 * time.Hour

const credentialContext = "windlass agent credential"

// Tx has the queries of fleet.
type Tx interface {
	GetJoinTokenByHash(hash []byte) (model.JoinToken, error)
	UseJoinToken(id, joinID string, at int64) error
	GetRegion(id string) (model.Region, error)
	InsertAudit(rows ...model.Audit) error

	GetAssignments(deployments map[string][]string) ([]model.Assignment, error)
	GetDeployments(ids []string) ([]model.Deployment, error)
	GetApp(workspaceID, id string) (model.App, error)
	GetSecret(workspaceID, environmentID, name string) (model.Secret, error)
	GetSecretVersion(workspaceID, environmentID, name string, version int32) (model.Secret, error)

	ExpireLeases(now int64, limit int) ([]string, error)
	AppsInRegion(regionID string) ([]string, error)
	Wake(appIDs []string, due, now int64) error
	NotifyRegion(model.RegionNotice) error
	ForgetDeliveries(at int64, limit int) (int, error)

	ListRegionHeads(after string, limit int) ([]model.Head, error)
	CompactChanges(regionID string, upto int64, limit int) (int, error)
	DeleteTopology(stoppedBefore int64, limit int) (int, error)
	CountInstancesByStatus() (map[windlassv1.InstanceStatus]int, error)
	DeleteInstances(terminatedBefore int64, limit int) (int, error)
	DeleteIdempotency(before int64, limit int) (int, error)
	DeleteApps(deletedBefore int64, limit int) (int, error)
	CrowdedApps(versions, entries int, after string, limit int) ([]string, error)
	LockApp(workspaceID, id string) (model.App, error)
	TrimVersions(app model.App, keep int32, limit int) (int, error)
	TrimHistory(appID string, keep, limit int) (int, error)
	TrimSecrets(keep int32, limit int) (int, error)
	DeleteAudit(before int64, limit int) (int, error)
	DeleteScalingLoads(before int64, limit int) (int, error)
	DeleteJoinTokens(expiredBefore int64, limit int) (int, error)
	DeleteBrowserSessions(expiredBefore int64, limit int) (int, error)
	DeleteUsedSignIns(expiredBefore int64, limit int) (int, error)
	DeleteIdleMembers(signedInBefore int64, limit int) (int, error)
	DeleteAPIKeys(endedBefore int64, limit int) (int, error)

	DomainsToCheck(before int64, limit int) ([]model.Domain, error)
	LockHeldDomains(names []string) ([]model.Domain, error)
	NoteDomainChecks(checks model.DomainChecks, at int64) error
	InsertHistory([]model.History) error
}

// Store runs transactions.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
	View(ctx context.Context, fn func(Tx) error) error
}

// Config configures a Service. Zero durations and counts mean the defaults below.
type Config struct {
	Store      Store
	Box        *seal.Box
	Log        *slog.Logger
	Registerer prometheus.Registerer

	// CredentialTTL is how long a credential is valid. Default: 24 h. Agents renew it after half of this time.
	CredentialTTL time.Duration
	// Lease returns the current length of leases, which package dispatch sets. Default: always LeaseTTL. LeaseTTL is
	// the shortest length, which sets the interval of sweeps. Default: 15 s.
	Lease    func() time.Duration
	LeaseTTL time.Duration
	// Retention is how long terminated instances, stopped topology and deleted apps are kept, so that people can
	// still see them the next day. Default: 24 h.
	Retention time.Duration
	// AuditRetention is how long audit entries are kept. Default: 90 days.
	AuditRetention time.Duration
	// KeepChanges is the number of changes of a region's feed that are kept for agents that resume. An agent that is
	// further behind gets a snapshot. Default: 20,000.
	KeepChanges int64
	// KeepVersions is the number of versions of an app that are kept, for rollbacks. Default: 100. KeepHistory is the
	// number of entries of an app's history that are kept. Default: 1,000, ten for each version.
	KeepVersions int32
	KeepHistory  int
	// LookupTXT returns the TXT records of a name. A name without records is no error.
	LookupTXT func(ctx context.Context, name string) ([]string, error)
	// KeepSecretVersions is the number of versions of a secret that are kept. Default: 5. An instance that refers to
	// a deleted version gets the newest version when it restarts.
	KeepSecretVersions int32
	// MaintainEvery is the time between two rounds of Maintain. A random time of up to half as much is added.
	// Default: 10 min.
	MaintainEvery time.Duration
	// FailedJoins limits failed joins per address. nil: no limit.
	FailedJoins *admission.Buckets
	// Trail writes refused calls, reads of secrets and renewals to the audit. nil: they are not written.
	Trail *trail.Trail
}

// Service serves Join, RenewCredential and GetSecrets, and sweeps.
type Service struct {
	cfg       Config
	usage     *usage
	misuse    *prometheus.CounterVec
	expired   prometheus.Counter
	forgotten *prometheus.CounterVec
	rounds    prometheus.Counter
}

// New returns a Service, or an error if the config is not valid.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Box == nil || cfg.LookupTXT == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("fleet: Store, Box, LookupTXT, Log and Registerer are required")
	}
	if cfg.Retention < 0 || cfg.AuditRetention < 0 || cfg.KeepChanges < 0 || cfg.KeepVersions < 0 || cfg.KeepHistory < 0 || cfg.KeepSecretVersions < 0 || cfg.MaintainEvery < 0 {
		return nil, errors.New("fleet: retention times and counts must not be negative: 0 means the default")
	}
	if cfg.FailedJoins == nil {
		cfg.FailedJoins = admission.NewBuckets(admission.Rate{})
	}
	if cfg.CredentialTTL == 0 {
		cfg.CredentialTTL = CredentialTTL
	}
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = 15 * time.Second
	}
	if cfg.Lease == nil {
		cfg.Lease = func() time.Duration { return cfg.LeaseTTL }
	}
	if cfg.Retention == 0 {
		cfg.Retention = 24 * time.Hour
	}
	if cfg.AuditRetention == 0 {
		cfg.AuditRetention = 90 * 24 * time.Hour
	}
	if cfg.KeepChanges == 0 {
		cfg.KeepChanges = 20_000
	}
	if cfg.KeepVersions == 0 {
		cfg.KeepVersions = 100
	}
	if cfg.KeepHistory == 0 {
		cfg.KeepHistory = 1000
	}
	if cfg.KeepSecretVersions == 0 {
		cfg.KeepSecretVersions = 5
	}
	if cfg.MaintainEvery == 0 {
		cfg.MaintainEvery = maintainEvery
	}
	s := &Service{cfg: cfg, usage: newUsage()}
	s.registerMetrics()
	return s, nil
}

// Identity is the identity of an agent's call.
type Identity struct {
	RegionID string
	// IssuedAt is when the credential was issued, in unix ms.
	IssuedAt int64
	// Key is the public key to which the credential is bound, empty if it is not bound.
	Key ed25519.PublicKey
	// Session identifies the start of the agent that made the call. The key proves it. Empty without a key.
	Session string
}

type identityKey struct{}

// WithIdentity returns a context with the identity.
func WithIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// Caller returns the identity of the call.
func Caller(ctx context.Context) (regionID string, issuedAt int64, ok bool) {
	id, ok := ctx.Value(identityKey{}).(Identity)
	return id.RegionID, id.IssuedAt, ok
}

type statement struct {
	Region    string `json:"r"`
	IssuedAt  int64  `json:"i"`
	ExpiresAt int64  `json:"e"`
	// Key is the agent's public key. It is empty in credentials of agents of earlier releases.
	Key []byte `json:"k,omitempty"`
}

// issueCredential makes a credential for the region, bound to the key if there is one.
func (s *Service) issueCredential(region string, key []byte, now time.Time) (*agentv1.Credential, error) {
	st := statement{Region: region, Key: key, IssuedAt: now.UnixMilli(), ExpiresAt: now.Add(s.cfg.CredentialTTL).UnixMilli()}
	data, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("encode credential: %w", err)
	}
	sealed, err := s.cfg.Box.Seal(data, credentialContext)
	if err != nil {
		return nil, fmt.Errorf("issue credential: %w", err)
	}
	return &agentv1.Credential{
		Value:     CredentialPrefix + base64.RawURLEncoding.EncodeToString(sealed),
		ExpiresAt: st.ExpiresAt,
	}, nil
}

// Verify decodes and checks a credential. Its errors say only that it is not valid.
func (s *Service) Verify(credential string, now time.Time) (Identity, error) {
	bad := func(message string) error {
		return rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", message)
	}
	body, ok := strings.CutPrefix(credential, CredentialPrefix)
	if !ok {
		return Identity{}, bad("this call needs an agent's credential: join the region first")
	}
	sealed, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return Identity{}, bad("the agent credential is damaged")
	}
	data, err := s.cfg.Box.Open(sealed, credentialContext)
	if err != nil {
		return Identity{}, bad("the agent credential was not issued by this control plane")
	}
	var st statement
	if err := json.Unmarshal(data, &st); err != nil {
		return Identity{}, bad("the agent credential is damaged")
	}
	if now.UnixMilli() >= st.ExpiresAt {
		return Identity{}, bad("the agent credential has expired: join the region again")
	}
	return Identity{RegionID: st.Region, IssuedAt: st.IssuedAt, Key: st.Key}, nil
}

// requireCurrent fails if the identity's credential was revoked.
func (s *Service) requireCurrent(region model.Region, id Identity) error {
	if id.IssuedAt < region.CredentialNotBefore {
		return rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "the agent credential was revoked: join the region again")
	}
	return nil
}

// Admit refuses agent calls without a credential, except Join. It also refuses a call that does not prove the key to
// which its credential is bound.
func (s *Service) Admit(ctx context.Context, call rpc.Call) (rpc.Admission, error) {
	if call.Procedure == agentv1connect.AgentServiceJoinProcedure {
		return rpc.Admission{Caller: call.Client.String()}, nil
	}
	token, _ := strings.CutPrefix(call.Header.Get("Authorization"), "Bearer ")
	id, err := s.Verify(token, time.Now())
	if err != nil {
		s.noteCall(model.Region{}, call.Client, trail.Entry{Procedure: call.Procedure, Outcome: outcomeOf(err)})
		return rpc.Admission{}, err
	}
	if id.Session, err = s.checkProof(ctx, call, id, token, time.Now()); err != nil {
		return rpc.Admission{}, err
	}
	return rpc.Admission{Caller: id.RegionID, With: func(ctx context.Context) context.Context {
		return WithIdentity(ctx, id)
	}}, nil
}

// noteCall counts a call of a region's agent in the audit of the entry's workspace, or else of the region's workspace. An
// entry without an outcome is ignored, because the control plane caused the failure.
func (s *Service) noteCall(region model.Region, client netip.Addr, e trail.Entry) {
	if e.Outcome == "" {
		return
	}
	e.Source = admission.ClientKey(client)
	if e.WorkspaceID == "" {
		e.WorkspaceID = region.WorkspaceID
	}
	if region.ID != "" {
		e.Actor, e.ActorID = "agent", region.ID
	}
	s.cfg.Trail.Note(e, time.Now().UnixMilli())
}

// outcomeOf returns the reason of a refusal, and "" for other errors.
func outcomeOf(err error) string {
	reason := rpc.DetailOf(err).GetReason()
	if reason == windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(reason.String(), "ERROR_REASON_"))
}

// Sweep makes leases expire until ctx ends.
func (s *Service) Sweep(ctx context.Context) error {
	interval := s.cfg.LeaseTTL / 3
	var healthySince, last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval + rand.N(interval/4+1)):
		}
		now := time.Now()
		// A long pause of this process counts as an outage.
		if healthySince.IsZero() || now.Sub(last) > 2*interval {
			healthySince = now
		}
		last = now
		expired, err := s.sweepRegions(ctx, now, now.Sub(healthySince) > s.cfg.Lease()+interval)
		if err != nil {
			healthySince = time.Time{}
			if ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "cannot sweep leases", "error", err)
			}
			continue
		}
		for _, region := range expired {
			s.expired.Inc()
			s.cfg.Log.WarnContext(ctx, "region is unreachable, because its agent stopped reporting", "region", region)
		}
	}
}

const sweepBatch = 100

func (s *Service) sweepRegions(ctx context.Context, now time.Time, judge bool) (expired []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LeaseTTL/3)
	defer cancel()
	if !judge {
		// This only checks that the database answers.
		return nil, s.cfg.Store.View(ctx, func(tx Tx) error {
			_, err := tx.ListRegionHeads("", 1)
			return err
		})
	}
	err = s.cfg.Store.Update(ctx, func(tx Tx) error {
		expired, err = tx.ExpireLeases(now.UnixMilli(), sweepBatch)
		if err != nil {
			return fmt.Errorf("expire leases: %w", err)
		}
		for _, region := range expired {
			apps, err := tx.AppsInRegion(region)
			if err != nil {
				return fmt.Errorf("list apps of region %s: %w", region, err)
			}
			if err := tx.Wake(apps, now.UnixMilli(), now.UnixMilli()); err != nil {
				return fmt.Errorf("wake apps of region %s: %w", region, err)
			}
			if err := tx.NotifyRegion(model.RegionNotice{
				MessageID: ident.New("ntf"), RegionID: region, Kind: model.NotifyRegionUnreachable, At: now.UnixMilli(),
			}); err != nil {
				return fmt.Errorf("notify of region %s: %w", region, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return expired, nil
}

// NewJoinToken returns the row to store for a token. The row has only the hash of the value.
func NewJoinToken(value, regionID string, now, expires int64) model.JoinToken {
	return model.JoinToken{ID: ident.New("jtk"), RegionID: regionID, Hash: model.HashToken(value), CreatedAt: now, ExpiresAt: expires}
}
