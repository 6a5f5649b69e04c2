package session

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// identity is what the agent stores after it has joined (mode 0600).
type identity struct {
	// JoinID is written before the first join. So an agent that dies between the control plane's
	// answer and the write may use its token again.
	JoinID     string `json:"join_id"`
	RegionID   string `json:"region_id"`
	RegionName string `json:"region_name"`
	Credential string `json:"credential"`
	IssuedAt   int64  `json:"issued_at"`
	ExpiresAt  int64  `json:"expires_at"`
}

// Credentials holds the credential of the region, and stores it in a file. It is safe for concurrent
// use.
type Credentials struct {
	files disk.Files
	name  string

	mu sync.Mutex
	id identity
	// key is the key to which the credential is bound. Nil: the credential is not bound.
	key ed25519.PrivateKey
	// session is the id of Watch's session. All proofs of this agent process have it, too. ahead is
	// how far the control plane's clock is ahead of the agent's, or 0 if proofs are valid without a
	// correction.
	session string
	ahead   time.Duration
}

// OpenCredentials reads the file with this name. If there is no file, there is no credential yet.
func OpenCredentials(files disk.Files, name string) (*Credentials, error) {
	c := &Credentials{files: files, name: name, session: ident.New("run")}
	if err := c.loadKey(); err != nil {
		return nil, err
	}
	data, err := files.Read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return nil, fmt.Errorf("read credential: %w", err)
	}
	if err := json.Unmarshal(data, &c.id); err != nil {
		return nil, fmt.Errorf("read credential %s (delete the file and give a new join token): %w", name, err)
	}
	return c, nil
}

// Token returns the credential's value. It is empty before the agent has joined.
func (c *Credentials) Token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id.Credential
}

// Region returns the name of the region that the agent joined.
func (c *Credentials) Region() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id.RegionName
}

// renewAt returns the middle of the credential's lifetime.
func (c *Credentials) renewAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.UnixMilli(c.id.IssuedAt + (c.id.ExpiresAt-c.id.IssuedAt)/2)
}

// store stores a new credential.
func (c *Credentials) store(cred *agentv1.Credential, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id.Credential, c.id.IssuedAt, c.id.ExpiresAt = cred.GetValue(), now.UnixMilli(), cred.GetExpiresAt()
	return c.saveFile()
}

func (c *Credentials) saveFile() error {
	data, err := json.Marshal(c.id)
	if err != nil {
		return fmt.Errorf("encode credential: %w", err)
	}
	if err := c.files.Replace(c.name, data); err != nil {
		return fmt.Errorf("store credential: %w", err)
	}
	return nil
}

// ErrJoin means that the agent cannot join until a person acts.
var ErrJoin = errors.New("cannot join")

// EnsureJoined joins, with full jitter between attempts, until there is a credential or ctx ends.
// If there is a credential already, it returns at once. If retry is zero, EnsureJoined uses the
// delays of a Session.
func (c *Credentials) EnsureJoined(ctx context.Context, client Client, tokenFile string, info *agentv1.AgentInfo, retry backoff.Policy, rnd func() float64, log *slog.Logger) error {
	if retry == (backoff.Policy{}) {
		retry = reconnect
	}
	for attempt := 0; c.Token() == ""; attempt++ {
		err := c.JoinOnce(ctx, client, tokenFile, info)
		if err == nil {
			log.InfoContext(ctx, "joined", "region", c.Region())
			return nil
		}
		wait := retry.Delay(attempt, rnd)
		log.WarnContext(ctx, "cannot join the region; will try again", "error", err, "retry_in", wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
	return nil
}

// JoinOnce joins in one attempt, unless there is a credential already.
func (c *Credentials) JoinOnce(ctx context.Context, client Client, tokenFile string, info *agentv1.AgentInfo) error {
	if c.Token() != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.joinWithToken(ctx, client, tokenFile, info, time.Now())
}

// readToken reads the file with the join token. An agent without a disk has the token among its own
// files.
func (c *Credentials) readToken(name string) ([]byte, error) {
	if m, ok := c.files.(*disk.Memory); ok {
		return m.Read(name)
	}
	return os.ReadFile(name)
}

// joinWithToken exchanges the join token for a credential.
func (c *Credentials) joinWithToken(ctx context.Context, client Client, tokenFile string, info *agentv1.AgentInfo, now time.Time) error {
	data, err := c.readToken(tokenFile)
	if err != nil {
		return fmt.Errorf("%w: no credential yet, and no join token: %w", ErrJoin, err)
	}
	public, err := c.publicKey()
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.id.JoinID == "" {
		c.id.JoinID = ident.New("join")
		if err = c.saveFile(); err != nil {
			c.id.JoinID = "" // a token is lost if it is used with an id that is not stored
		}
	}
	joinID := c.id.JoinID
	c.mu.Unlock()
	if err != nil {
		return err
	}
	resp, err := client.Join(ctx, &agentv1.JoinRequest{Token: strings.TrimSpace(string(data)), Agent: info, JoinId: joinID, PublicKey: public})
	if connect.CodeOf(err) == connect.CodePermissionDenied {
		return fmt.Errorf("%w with the token in %s: %w", ErrJoin, tokenFile, err)
	}
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	c.mu.Lock()
	c.id.RegionID, c.id.RegionName = resp.RegionId, resp.RegionName
	c.mu.Unlock()
	return c.store(resp.Credential, now)
}
