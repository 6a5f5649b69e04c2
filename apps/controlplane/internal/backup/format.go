// Package backup reads and writes backups of the control plane's database.
//
// A backup is lines of JSON, compressed by gzip and encrypted by age if there are recipients:
//
//	{"format":"windlass-backup","version":1,"schema":63,"program":"1.4.0","taken":"2026-11-29T10:00:00Z"}
//	{"table":"apps","columns":["id","name"],"binary":[false,true]}
//	["app_1",{"base64":"AAE="}]
//	{"end":{"rows":1,"tables":1,"sha256":"..."}}
//
// The sum is over all lines before the last one. A backup without its last line is cut off.
package backup

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"filippo.io/age"
)

// Format and FormatVersion begin every backup.
const (
	Format        = "windlass-backup"
	FormatVersion = 1
)

// Header says what a backup is of.
type Header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Schema is the last migration of the database.
	Schema int64 `json:"schema"`
	// Program is the version of the program that took the backup.
	Program string    `json:"program"`
	Taken   time.Time `json:"taken"`
}

// Table begins the rows of a table.
type Table struct {
	Name    string   `json:"table"`
	Columns []string `json:"columns"`
	// Binary says which columns hold bytes that are no text.
	Binary []bool `json:"binary"`
}

// Totals end a backup.
type Totals struct {
	Rows   int64  `json:"rows"`
	Tables int    `json:"tables"`
	SHA256 string `json:"sha256"`
}

type end struct {
	End *Totals `json:"end"`
}

// bytesValue is a value of a binary column.
type bytesValue struct {
	Base64 []byte `json:"base64"`
}

// ErrDamaged says that a backup is cut off or was changed.
var ErrDamaged = errors.New("the backup is damaged")

// Writer writes a backup.
type Writer struct {
	out    *bufio.Writer
	close  []io.Closer
	sum    hash.Hash
	table  Table
	totals Totals
}

// NewWriter writes h to out, encrypted for recipients if there are any. The caller must call Close.
func NewWriter(out io.Writer, h Header, recipients ...age.Recipient) (*Writer, error) {
	w := &Writer{sum: sha256.New()}
	if len(recipients) > 0 {
		sealed, err := age.Encrypt(out, recipients...)
		if err != nil {
			return nil, fmt.Errorf("encrypt: %w", err)
		}
		w.close, out = append(w.close, sealed), sealed
	}
	packed := gzip.NewWriter(out)
	w.close = append(w.close, packed)
	w.out = bufio.NewWriterSize(packed, 1<<16)
	h.Format, h.Version = Format, FormatVersion
	return w, w.line(h)
}

func (w *Writer) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	w.sum.Write(b)
	_, err = w.out.Write(b)
	return err
}

// Begin begins a table. Rows belong to it until the next one begins.
func (w *Writer) Begin(t Table) error {
	w.table = t
	w.totals.Tables++
	return w.line(t)
}

// Row writes the values of a row as the server writes them; nil is NULL.
func (w *Writer) Row(values [][]byte) error {
	if len(values) != len(w.table.Columns) {
		return fmt.Errorf("table %s: a row of %d values for %d columns", w.table.Name, len(values), len(w.table.Columns))
	}
	row := make([]any, len(values))
	for i, v := range values {
		switch {
		case v == nil:
		case w.table.Binary[i]:
			row[i] = bytesValue{v}
		default:
			row[i] = string(v)
		}
	}
	w.totals.Rows++
	return w.line(row)
}

// Close ends the backup. Without it, the backup counts as cut off.
func (w *Writer) Close() (Totals, error) {
	w.totals.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	err := w.line(end{&w.totals})
	if err == nil {
		err = w.out.Flush()
	}
	for i := len(w.close) - 1; i >= 0 && err == nil; i-- {
		err = w.close[i].Close()
	}
	return w.totals, err
}

// Reader reads a backup.
type Reader struct {
	Header Header

	in     *bufio.Reader
	sum    hash.Hash
	table  Table
	totals Totals
	ended  bool
}

// ageMagic begins everything that age encrypts.
const ageMagic = "age-encryption.org/"

// NewReader reads the header of a backup, which it decrypts if it is encrypted.
func NewReader(in io.Reader, identities ...age.Identity) (*Reader, error) {
	buffered := bufio.NewReader(in)
	var from io.Reader = buffered
	magic, err := buffered.Peek(len(ageMagic))
	if len(magic) == 0 {
		return nil, fmt.Errorf("%w: it is empty (%w)", ErrDamaged, err)
	}
	if string(magic) == ageMagic {
		if len(identities) == 0 {
			return nil, errors.New("the backup is encrypted: name the file with its key by --identity-file")
		}
		opened, err := age.Decrypt(buffered, identities...)
		if err != nil {
			return nil, fmt.Errorf("decrypt: %w", err)
		}
		from = opened
	}
	unpacked, err := gzip.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("this is no backup of Windlass: %w", err)
	}
	r := &Reader{in: bufio.NewReaderSize(unpacked, 1<<16), sum: sha256.New()}
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &r.Header); err != nil || r.Header.Format != Format {
		return nil, errors.New("this is no backup of Windlass")
	}
	if r.Header.Version > FormatVersion {
		return nil, fmt.Errorf("the backup has format %d, and this program reads up to %d: use the program of version %s or later", r.Header.Version, FormatVersion, r.Header.Program)
	}
	r.sum.Write(line)
	return r, nil
}

func (r *Reader) line() ([]byte, error) {
	b, err := r.in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: it ends before its last line (%w)", ErrDamaged, err)
	}
	return b, nil
}

// Row is a row of a table.
type Row struct {
	Table *Table
	// Values are nil, string or []byte.
	Values []any
}

// Next returns the next row, and io.EOF after the last one of a whole backup.
func (r *Reader) Next() (Row, error) {
	for {
		if r.ended {
			return Row{}, io.EOF
		}
		line, err := r.line()
		if err != nil {
			return Row{}, err
		}
		if line[0] == '[' {
			r.sum.Write(line)
			return r.row(line)
		}
		var head struct {
			Table
			end
		}
		if err := json.Unmarshal(line, &head); err != nil {
			return Row{}, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if head.End != nil {
			return Row{}, r.finish(*head.End)
		}
		if head.Name == "" || len(head.Columns) == 0 || len(head.Binary) != len(head.Columns) {
			return Row{}, fmt.Errorf("%w: a table without a name or columns", ErrDamaged)
		}
		r.sum.Write(line)
		r.table = head.Table
		r.totals.Tables++
	}
}

// finish returns io.EOF if the backup is whole.
func (r *Reader) finish(want Totals) error {
	r.totals.SHA256 = hex.EncodeToString(r.sum.Sum(nil))
	if r.totals != want {
		return fmt.Errorf("%w: its sum or its number of rows is not what its last line says", ErrDamaged)
	}
	// Reading on makes gzip and age check their own ends.
	n, err := io.Copy(io.Discard, r.in)
	if err != nil {
		return fmt.Errorf("%w: after its last line: %w", ErrDamaged, err)
	}
	if n > 0 {
		return fmt.Errorf("%w: it has %d bytes after its last line", ErrDamaged, n)
	}
	r.ended = true
	return io.EOF
}

func (r *Reader) row(line []byte) (Row, error) {
	var cells []json.RawMessage
	if err := json.Unmarshal(line, &cells); err != nil {
		return Row{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(cells) != len(r.table.Columns) {
		return Row{}, fmt.Errorf("%w: a row of %d values for %d columns of table %q", ErrDamaged, len(cells), len(r.table.Columns), r.table.Name)
	}
	table := r.table
	row := Row{Table: &table, Values: make([]any, len(cells))}
	for i, c := range cells {
		var err error
		switch {
		case string(c) == "null":
		case table.Binary[i]:
			var v bytesValue
			err = json.Unmarshal(c, &v)
			if v.Base64 == nil {
				v.Base64 = []byte{}
			}
			row.Values[i] = v.Base64
		default:
			var s string
			err = json.Unmarshal(c, &s)
			row.Values[i] = s
		}
		if err != nil {
			return Row{}, fmt.Errorf("%w: column %s of table %s: %w", ErrDamaged, table.Columns[i], table.Name, err)
		}
	}
	r.totals.Rows++
	return row, nil
}

// Totals returns what was read up to now.
func (r *Reader) Totals() Totals { return r.totals }

// Verify reads a backup to its end.
func Verify(r *Reader) (Totals, error) {
	for {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			return r.totals, nil
		} else if err != nil {
			return r.totals, err
		}
	}
}
