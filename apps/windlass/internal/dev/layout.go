package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// layout of a data directory. Everything that dev makes has a name here, so that
// --reset removes that and nothing else: --data-dir may be any folder.
type layout struct {
	root string
	// usual: it is the data directory that dev has without --data-dir.
	usual bool
}

// shellCommand returns the shell command that calls a command of dev for this directory.
func (l layout) shellCommand(program, name string) string {
	text := program + " dev " + name
	if !l.usual {
		text += " --data-dir " + shellWord(l.root)
	}
	return text
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord is a text as one word of a shell.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func (l layout) lockPath() string        { return filepath.Join(l.root, "dev.lock") }
func (l layout) statePath() string       { return filepath.Join(l.root, "state.json") }
func (l layout) credentialsPath() string { return filepath.Join(l.root, "credentials.json") }
func (l layout) logPath() string         { return filepath.Join(l.root, "dev.log") }

func (l layout) mariaDBDir() string      { return filepath.Join(l.root, "mariadb") }
func (l layout) restateFrontDir() string { return filepath.Join(l.root, "restate-tls") }
func (l layout) restateDir() string      { return filepath.Join(l.root, "restate") }
func (l layout) controlPlaneDir() string { return filepath.Join(l.root, "controlplane") }
func (l layout) agentsDir() string       { return filepath.Join(l.root, "agents") }

func (l layout) gatewaysDir() string { return filepath.Join(l.root, "gateways") }

func (l layout) gatewayDir(region string) string { return filepath.Join(l.gatewaysDir(), region) }

func (l layout) kubelabsDir() string { return filepath.Join(l.root, "kubelab") }

func (l layout) kubelabDir(region string) string { return filepath.Join(l.kubelabsDir(), region) }

func (l layout) agentDir(region string) string { return filepath.Join(l.agentsDir(), region) }

// agentSocket is where the region's agent tells gateways what to serve.
func (l layout) agentSocket(region string) string {
	return filepath.Join(dataDir(l.agentDir(region)), "gateway.sock")
}

// maxSocketPath is what the kernel takes.
const maxSocketPath = 107

// takesGateway: one is no good to a region whose folder is too deep for a socket.
func (l layout) takesGateway(region string) bool { return len(l.agentSocket(region)) <= maxSocketPath }

// Of the folder of a program that is this binary.
func recordFile(dir string) string { return filepath.Join(dir, "process.json") }
func argsFile(dir string) string   { return filepath.Join(dir, "args.json") }
func dataDir(dir string) string    { return filepath.Join(dir, "data") }

// everyRegion is every region that ever had an agent here, not only those of the
// next run.
func (l layout) everyRegion() ([]string, error) { return listFolders(l.agentsDir()) }

// everyGateway is every region that ever had a gateway here.
func (l layout) everyGateway() ([]string, error) { return listFolders(l.gatewaysDir()) }

// everyCluster is every region that ever was a cluster here.
func (l layout) everyCluster() ([]string, error) { return listFolders(l.kubelabsDir()) }

func listFolders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// removeAll removes every file that dev makes, except the lock, which the caller holds.
func (l layout) removeAll() error {
	for _, path := range []string{
		l.gatewaysDir(), l.agentsDir(), l.kubelabsDir(), l.controlPlaneDir(), l.restateFrontDir(), l.restateDir(), l.mariaDBDir(), l.tlsDir(),
		l.credentialsPath(), l.statePath(), l.logPath(), l.logPath() + ".1",
	} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("reset %s: %w", l.root, err)
		}
	}
	return nil
}

// defaultDataDir is XDG's, on every system.
func defaultDataDir(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "windlass", "dev"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for the data: %w; or give one with --data-dir", err)
	}
	return filepath.Join(home, ".local", "share", "windlass", "dev"), nil
}
