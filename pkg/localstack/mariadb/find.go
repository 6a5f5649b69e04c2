package mariadb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Paths are the programs of an installed MariaDB.
type Paths struct {
	// Server is the path of mariadbd. InstallDB is the path of the tool that creates a data directory.
	Server, InstallDB string
	// BaseDir is the installation to which both belong, such as /usr.
	BaseDir string
	// Version is what the server prints, such as 10.11.19-MariaDB.
	Version string
}

// folders are searched in addition to PATH, because the server is often not in a user's
// PATH, and Homebrew does not link it.
var folders = []string{
	"/usr/sbin", "/usr/bin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin", "/usr/local/mariadb/bin",
	"/opt/homebrew/bin", "/opt/homebrew/opt/mariadb/bin", "/usr/local/opt/mariadb/bin",
	"/home/linuxbrew/.linuxbrew/opt/mariadb/bin",
}

var errNotInstalled = errors.New("MariaDB is not installed")

// Find looks for MariaDB in PATH and in folders of distributions. MySQL's mysqld does
// not count, because its data directories are created in another way.
func Find(ctx context.Context) (Paths, error) {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), folders...)
	installDB := lookup(dirs, "mariadb-install-db", "mysql_install_db")
	server := lookup(dirs, "mariadbd", "mysqld")
	if installDB == "" || server == "" {
		return Paths{}, errNotInstalled
	}
	out, err := exec.CommandContext(ctx, server, "--no-defaults", "--version").CombinedOutput()
	if err != nil {
		return Paths{}, fmt.Errorf("%s --version: %w: %s", server, err, lastLine(string(out)))
	}
	version := ""
	for f := range strings.FieldsSeq(string(out)) {
		if strings.Contains(f, "MariaDB") {
			version = f
			break
		}
	}
	if version == "" {
		return Paths{}, errNotInstalled
	}
	base := server
	if target, err := filepath.EvalSymlinks(server); err == nil {
		base = target
	}
	return Paths{
		Server: server, InstallDB: installDB,
		BaseDir: filepath.Dir(filepath.Dir(base)),
		Version: strings.TrimRight(version, ","),
	}, nil
}

// lookup returns the path of the first name that is a program in one of the folders.
func lookup(dirs []string, names ...string) string {
	for _, name := range names {
		for _, dir := range dirs {
			if dir == "" {
				continue
			}
			path := filepath.Join(dir, name)
			if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return path
			}
		}
	}
	return ""
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
