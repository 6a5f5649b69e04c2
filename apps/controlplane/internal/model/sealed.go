package model

// SealedValue is a version of a secret as it is stored. SecretContext binds it to its identity.
type SealedValue struct {
	EnvironmentID, Name string
	Version             int32
	Ciphertext          []byte
}

// ResealedValue is a sealed value with the ciphertext that replaces its own.
type ResealedValue struct {
	SealedValue

	Resealed []byte
}
