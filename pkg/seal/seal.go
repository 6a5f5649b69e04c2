// Package seal encrypts small values at rest with a keyset in a file. It uses Tink's AEAD (AES-256-GCM) and
// keysets, so that keys can be rotated. The primary key seals, and older keys of the set still open.
package seal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// Box seals and opens values. It is safe for concurrent use.
type Box struct {
	aead   tink.AEAD
	handle *keyset.Handle
}

// Seal encrypts plain and binds it to context. Open needs the same context, so that a ciphertext cannot be
// opened in another place.
func (b *Box) Seal(plain []byte, context string) ([]byte, error) {
	out, err := b.aead.Encrypt(plain, []byte(context))
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return out, nil
}

// Open decrypts a value that Seal returned for the same context.
func (b *Box) Open(sealed []byte, context string) ([]byte, error) {
	out, err := b.aead.Decrypt(sealed, []byte(context))
	if err != nil {
		return nil, errors.New("open sealed value: wrong key, wrong context or damaged value")
	}
	return out, nil
}

// Generate returns a new keyset with one key, as Tink's JSON.
func Generate() ([]byte, error) {
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("generate key: %w", err)
	}
	var buf bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&buf)); err != nil {
		return nil, fmt.Errorf("write keyset: %w", err)
	}
	return buf.Bytes(), nil
}

// New returns a Box with a keyset in Tink's JSON.
func New(data []byte) (*Box, error) {
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(data)))
	if err != nil {
		return nil, fmt.Errorf("read keyset: %w", err)
	}
	primitive, err := aead.New(handle)
	if err != nil {
		return nil, fmt.Errorf("use keyset: %w", err)
	}
	return &Box{aead: primitive, handle: handle}, nil
}

// Load returns a Box with the keyset of a file. The file must be private; see access.checkAccess.
func Load(path string) (*Box, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	box, err := New(data)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return box, nil
}

func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer file.Close() //nolint:errcheck // nothing was written
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	access, err := accessOf(info)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if err := access.checkAccess(path); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return data, nil
}

// Create creates the file (mode 0600) with a new keyset. It fails if the file exists.
func Create(path string) error {
	data, err := Generate()
	if err != nil {
		return err
	}
	return write(path, data, os.Link)
}

// write writes data to a temporary file, and calls place to move it to path. So path never has a part of the data.
func write(path string, data []byte, place func(from, to string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*")
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // the file was moved, or is useless
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	if err := place(tmp.Name(), path); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return nil
}

// LoadOrCreate is Load, but creates a missing file (mode 0600). If several processes start at once, one
// creates the file and all use it.
func LoadOrCreate(path string) (*Box, error) {
	box, err := Load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return box, err
	}
	// Link fails if the name exists. Rename would replace the key of another process.
	if err := Create(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return Load(path)
}
