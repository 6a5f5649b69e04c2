// Package clientconfig keeps what the CLI needs to call a control plane: contexts, each with a server, a key
// and defaults of commands.
//
// Only the user who owns the file can read it, because it holds keys. Update is the only way to change the file: it
// reads, changes and replaces the file under a lock. So two concurrent commands keep each other's changes, and a killed
// command leaves the old file.
package clientconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
)

// The environment overrides the file: EnvContext chooses a context, and each other variable replaces one value of the
// context. With EnvServer and EnvAPIKey no file is needed.
const (
	EnvContext = "WINDLASS_CONTEXT"
	EnvServer  = "WINDLASS_SERVER"
	EnvAPIKey  = "WINDLASS_API_KEY"
	// EnvFederatedToken is an OpenID Connect token of a CI, which login trades for a token of the control plane.
	EnvFederatedToken = "WINDLASS_FEDERATED_TOKEN"
	// EnvServerCA, EnvClientCert, EnvClientKey and EnvInsecure set how to connect.
	EnvServerCA   = "WINDLASS_SERVER_CA"
	EnvClientCert = "WINDLASS_CLIENT_CERT"
	EnvClientKey  = "WINDLASS_CLIENT_KEY"
	EnvInsecure   = "WINDLASS_INSECURE"
	// EnvFile is the path of the file, instead of the usual one.
	EnvFile = "WINDLASS_CONFIG"
)

// Variable is an environment variable that commands read.
type Variable struct{ Name, Meaning string }

// Variables lists the variables of this package, in the order of the reference.
var Variables = []Variable{
	{EnvFile, "path of the file that holds the contexts, as `--config`"},
	{EnvContext, "name of the context to use, as `--context`"},
	{EnvServer, "URL of the control plane. A URL that differs from the context's needs `" + EnvAPIKey + "`, too, and is called without the context's certificates. With both, no file is needed"},
	{EnvAPIKey, "API key, in place of the context's"},
	{EnvFederatedToken, "OpenID Connect token of a CI, which `windlass login` trades for a token of the control plane"},
	{EnvServerCA, "path of a PEM file with the CAs of the server's certificate. Default: the context's, else the CAs of this machine"},
	{EnvClientCert, "path of a PEM file with a client certificate"},
	{EnvClientKey, "path of a PEM file with the key of the client certificate"},
	{EnvInsecure, "`true` allows an http:// URL of another machine; `false` forbids it"},
}

// lockDeadline bounds the wait for other updates, which are short.
const lockDeadline = 10 * time.Second

// Context is one control plane as one user sees it.
type Context struct {
	Name string `json:"name"`
	// Server is the URL of the API.
	Server string `json:"server"`
	// APIKey is an API key, or the token of a member who signed in.
	APIKey string `json:"apiKey,omitempty"`
	// ExpiresAt and RenewAt are when a member's token expires and is due for a renewal, in unix ms. 0: it is a key.
	ExpiresAt int64 `json:"expiresAt,omitempty"`
	RenewAt   int64 `json:"renewAt,omitempty"`
	// ServerCA, ClientCert and ClientKey are paths of PEM files: the CAs of the server's certificate (empty: the CAs of
	// this machine), and a client certificate with its key.
	ServerCA   string `json:"serverCA,omitempty"`
	ClientCert string `json:"clientCert,omitempty"`
	ClientKey  string `json:"clientKey,omitempty"`
	// Insecure allows an http:// URL of another machine.
	Insecure bool `json:"insecure,omitempty"`
	// Workspace, Project and Environment are defaults of commands that name none.
	Workspace   string `json:"workspace,omitempty"`
	Project     string `json:"project,omitempty"`
	Environment string `json:"environment,omitempty"`
}

// File is the whole configuration. The zero value is an empty configuration.
type File struct {
	// Current names the context of commands that choose none.
	Current  string    `json:"currentContext,omitempty"`
	Contexts []Context `json:"contexts,omitempty"`
}

// ErrNoContext means that no server is configured.
var ErrNoContext = errors.New("no server is configured: run `windlass dev` to start one here, or `windlass login` for another")

// Path returns the path of the file: EnvFile, else windlass/config.yaml in the user's configuration folder.
func Path(getenv func(string) string) (string, error) {
	if path := getenv(EnvFile); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration folder: %w; or set %s", err, EnvFile)
	}
	return filepath.Join(dir, "windlass", "config.yaml"), nil
}

// Load reads the file. A missing file is an empty configuration.
func Load(path string) (File, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("read configuration: %w", err)
	}
	var f File
	if err := yaml.UnmarshalStrict(b, &f); err != nil {
		return File{}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	documents := yamlv3.NewDecoder(bytes.NewReader(b))
	var content yamlv3.Node
	if documents.Decode(&content) == nil && !errors.Is(documents.Decode(&content), io.EOF) {
		// The next change of the file would lose the other documents.
		return File{}, fmt.Errorf("read configuration %s: there is something after the first document: remove it", path)
	}
	for i, c := range f.Contexts {
		if c.Name == "" {
			return File{}, fmt.Errorf("read configuration %s: contexts[%d].name is empty", path, i)
		}
	}
	return f, nil
}

// Update changes the file. If change fails, nothing is written.
func Update(ctx context.Context, path string, change func(*File) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockDeadline, errors.New("another command holds it"))
	defer cancel()
	lock, err := flock.Acquire(ctx, path+".lock", nil)
	if err != nil {
		return fmt.Errorf("update configuration: %w", err)
	}
	defer func() { _ = lock.Unlock() }()
	f, err := Load(path)
	if err != nil {
		return err
	}
	if err := change(&f); err != nil {
		return err
	}
	b, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("update configuration: %w", err)
	}
	if err := atomicfile.Write(path, b, 0o600); err != nil {
		return fmt.Errorf("update configuration: %w", err)
	}
	return nil
}

// Put adds a context, or replaces the context of the same name.
func (f *File) Put(c Context) {
	i := slices.IndexFunc(f.Contexts, func(o Context) bool { return o.Name == c.Name })
	if i < 0 {
		f.Contexts = append(f.Contexts, c)
		return
	}
	f.Contexts[i] = c
}

// Remove removes a context, and reports whether it existed.
func (f *File) Remove(name string) bool {
	n := len(f.Contexts)
	f.Contexts = slices.DeleteFunc(f.Contexts, func(c Context) bool { return c.Name == name })
	if f.Current == name {
		f.Current = ""
	}
	return len(f.Contexts) < n
}

// Get returns the context of this name.
func (f *File) Get(name string) (Context, bool) {
	i := slices.IndexFunc(f.Contexts, func(c Context) bool { return c.Name == name })
	if i < 0 {
		return Context{}, false
	}
	return f.Contexts[i], true
}

// Resolve returns the context to use: name (a flag's), else EnvContext, else the current context. Then the
// environment's server and key replace the context's. A key is never sent to a server that it was not given for: if the
// environment names another server, it must name the key, too.
func (f *File) Resolve(name string, getenv func(string) string) (Context, error) {
	server, key := getenv(EnvServer), getenv(EnvAPIKey)
	if name == "" {
		name = getenv(EnvContext)
	}
	chosen := name != ""
	if !chosen {
		name = f.Current
	}
	c, ok := f.Get(name)
	switch {
	case !ok && chosen:
		return Context{}, fmt.Errorf("context %q is not configured: %s", name, f.contextNames())
	case !ok && server == "" && name != "":
		return Context{}, fmt.Errorf("the current context %q is not configured: %s", name, f.contextNames())
	case !ok && server == "":
		return Context{}, ErrNoContext
	}
	if server != "" && strings.TrimRight(server, "/") != strings.TrimRight(c.Server, "/") {
		// The context's key and TLS files belong to its own server.
		c.Server, c.APIKey, c.ExpiresAt, c.RenewAt = server, "", 0, 0
		c.ServerCA, c.ClientCert, c.ClientKey, c.Insecure = "", "", "", false
	}
	if key != "" {
		c.APIKey, c.ExpiresAt, c.RenewAt = key, 0, 0
	}
	for name, value := range map[string]*string{EnvServerCA: &c.ServerCA, EnvClientCert: &c.ClientCert, EnvClientKey: &c.ClientKey} {
		if v := getenv(name); v != "" {
			*value = v
		}
	}
	if v := getenv(EnvInsecure); v != "" {
		insecure, err := strconv.ParseBool(v)
		if err != nil {
			return Context{}, fmt.Errorf("%s=%q: use true or false", EnvInsecure, v)
		}
		c.Insecure = insecure
	}
	if err := c.TLS().CheckURL(c.Server); err != nil {
		return Context{}, err
	}
	c.Server = strings.TrimRight(c.Server, "/")
	return c, nil
}

// TLS returns the TLS settings of calls to the server.
func (c Context) TLS() certfile.ClientFlags {
	return certfile.ClientFlags{ServerCA: c.ServerCA, Cert: c.ClientCert, Key: c.ClientKey, Insecure: c.Insecure}
}

func (f *File) contextNames() string {
	if len(f.Contexts) == 0 {
		return "there are no contexts"
	}
	names := make([]string, len(f.Contexts))
	for i, c := range f.Contexts {
		names[i] = c.Name
	}
	slices.Sort(names)
	return "the contexts are " + strings.Join(names, ", ")
}
