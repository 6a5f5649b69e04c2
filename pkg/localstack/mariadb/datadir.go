package mariadb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
)

// The private directory of one server:
//
//	data/          MariaDB's data directory, always complete
//	data.tmp/      an incomplete data directory, which the next start replaces
//	password       the password of the account that Windlass uses
//	init.sql       creates that account; the server runs it at each start
//	tmp/  mariadbd.log  mariadbd.json (pid record)

// account is the only account that may connect over TCP. The root account that
// mariadb-install-db makes may connect only over the socket, and only as this
// system user.
const account = "windlass"

// prepareDir makes the directory ready for a server. It is idempotent, and completes the work of a killed
// process.
func prepareDir(ctx context.Context, paths Paths, dir string, d Durability, progress func(string)) (password string, err error) {
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o700); err != nil {
		return "", err
	}
	if password, err = ensurePassword(filepath.Join(dir, "password")); err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	if _, err := os.Stat(data); errors.Is(err, fs.ErrNotExist) {
		progress("making a new MariaDB data directory")
		if err := newData(ctx, paths, dir, d); err != nil {
			return "", fmt.Errorf("make a data directory: %w", err)
		}
	} else if err != nil {
		return "", err
	}
	init := fmt.Sprintf(`CREATE USER IF NOT EXISTS '%[1]s'@'127.0.0.1';
ALTER USER '%[1]s'@'127.0.0.1' IDENTIFIED BY '%[2]s';
GRANT ALL PRIVILEGES ON *.* TO '%[1]s'@'127.0.0.1';
`, account, password)
	return password, atomicfile.Write(filepath.Join(dir, "init.sql"), []byte(init), 0o600)
}

// ensurePassword reads the password, or makes one of 128 random bits.
func ensurePassword(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil && len(b) > 0 {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	password := rand.Text()
	return password, atomicfile.Write(path, []byte(password), 0o600)
}
