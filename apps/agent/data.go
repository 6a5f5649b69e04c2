package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/secrets"
)

// Where things are in the data directory.
const (
	credentialFile = "credential.json"
	gatewaysFile   = "gateways.json"
	neighboursFile = "neighbours.binpb"
	zeroFile       = "zero.json"
	gatewaySocket  = "gateway.sock"
)

// Memory is what a data directory holds, for agents that run where there is no
// disk: fleets in virtual time. It outlives the agents, one at a time.
type Memory struct {
	inbox   *inbox.Memory
	files   *disk.Memory
	secrets *disk.Memory
}

// NewMemory returns one that holds a join token, in Config.TokenFile, and nothing
// else: its agent has not joined.
func NewMemory(tokenFile, token string) *Memory {
	m := &Memory{inbox: inbox.NewMemory(), files: disk.NewMemory(), secrets: disk.NewMemory()}
	_ = m.files.Replace(tokenFile, []byte(token)) // it cannot fail in memory
	return m
}

// Clone returns a copy, as of a disk that was moved to another machine.
func (m *Memory) Clone() *Memory {
	return &Memory{inbox: m.inbox.Clone(), files: m.files.Clone(), secrets: m.secrets.Clone()}
}

// files of the agent but for the inbox and the secrets.
func (c Config) files() disk.Files {
	if c.Memory != nil {
		return c.Memory.files
	}
	return disk.Dir(c.DataDir)
}

// openInbox makes the data directory, too. The lock of the inbox's file is what
// keeps a second agent off it.
func openInbox(cfg Config) (*inbox.Inbox, error) {
	if cfg.Memory != nil {
		return inbox.OpenMemory(cfg.Memory.inbox)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return inbox.Open(filepath.Join(cfg.DataDir, "inbox.db"), cfg.NoSync)
}

func openSecrets(cfg Config, fetch secrets.Fetch) (*secrets.Cache, error) {
	if cfg.Memory != nil {
		return secrets.OpenMemory(cfg.Memory.secrets, fetch)
	}
	return secrets.Open(filepath.Join(cfg.DataDir, "secrets"), fetch)
}
