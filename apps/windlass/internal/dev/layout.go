package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// layout names the files of a data directory. Every file that dev creates has a name here, so that --reset
// removes nothing else: --data-dir may be any folder.
type layout struct {
	root string
	// usual reports whether root is the data directory of a dev without --data-dir.
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

// shellWord quotes a text as one word of a shell command.
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

// agentSocket returns the path of the socket on which the region's agent serves its gateways.
func (l layout) agentSocket(region string) string {
	return filepath.Join(dataDir(l.agentDir(region)), "gateway.sock")
}

// maxSocketPath is the kernel's limit.
const maxSocketPath = 107

// takesGateway reports whether the path of the agent's socket is short enough for a gateway.
func (l layout) takesGateway(region string) bool { return len(l.agentSocket(region)) <= maxSocketPath }

// These files are in the folder of each program that runs from this binary.
func recordFile(dir string) string { return filepath.Join(dir, "process.json") }
func argsFile(dir string) string   { return filepath.Join(dir, "args.json") }
func dataDir(dir string) string    { return filepath.Join(dir, "data") }

// everyRegion returns every region that ever had an agent here, even if the next run does not have it.
func (l layout) everyRegion() ([]string, error) { return listFolders(l.agentsDir()) }

// everyGateway returns every region that ever had a gateway here.
func (l layout) everyGateway() ([]string, error) { return listFolders(l.gatewaysDir()) }

// everyCluster returns every region that ever was a cluster here.
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

// defaultDataDir returns the data directory of the XDG specification, on every system.
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
