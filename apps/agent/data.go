package agent

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/secrets"
)

// The names of the files in the data directory.
const (
	credentialFile = "credential.json"
	gatewaysFile   = "gateways.json"
	neighboursFile = "neighbours.binpb"
	versionsFile   = "versions.json"
	zeroFile       = "zero.json"
	modelsFile     = "models.json"
	gatewaySocket  = "gateway.sock"
)

// Memory has the content of a data directory, for agents without a disk, in fleets in virtual time.
// It outlives the agents, and only one agent may use it at a time.
type Memory struct {
	inbox   *inbox.Memory
	files   *disk.Memory
	secrets *disk.Memory
}

// NewMemory returns a Memory that holds only a join token, in the file Config.TokenFile. Its agent
// has not joined.
func NewMemory(tokenFile, token string) *Memory {
	m := &Memory{inbox: inbox.NewMemory(), files: disk.NewMemory(), secrets: disk.NewMemory()}
	_ = m.files.Replace(tokenFile, []byte(token)) // Replace cannot fail in memory
	return m
}

// Clone returns a copy, like a copy of a data directory on another machine.
func (m *Memory) Clone() *Memory {
	return &Memory{inbox: m.inbox.Clone(), files: m.files.Clone(), secrets: m.secrets.Clone()}
}

// ownFiles returns the agent's files, without the inbox and the secrets.
func (c Config) ownFiles() disk.Files {
	if c.Memory != nil {
		return c.Memory.files
	}
	return disk.Dir(c.DataDir)
}

// openInbox opens the inbox, and makes the data directory if necessary. The lock on the inbox's
// file prevents a second agent.
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
