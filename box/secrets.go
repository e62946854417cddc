package box

// SecretsPolicy says what is done about a secret that stands in a history, or in
// the files of a workspace, when it is exported.
type SecretsPolicy string

// What may be done. What an agent-server promises to mask is masked by each of
// them.
const (
	SecretsKeep   SecretsPolicy = "keep"   // stored as it is: the store is private
	SecretsRedact SecretsPolicy = "redact" // masked in what is stored; see [SecretsPolicy.Withholds]
	SecretsBlock  SecretsPolicy = "block"  // nothing is exported while there is one
)

// Validate refuses a policy that is not known; the zero value takes the
// worker's setting. Invalid names the field.
func (p SecretsPolicy) Validate(field string) error {
	switch p {
	case "", SecretsKeep, SecretsRedact, SecretsBlock:
		return nil
	}
	return Invalidf(field, "%q is not known; use \"keep\", \"redact\" or \"block\"", string(p))
}

// Masks reports whether a find is masked in what is stored. Promised says that
// the agent-server should have masked it.
func (p SecretsPolicy) Masks(promised bool) bool { return promised || p == SecretsRedact }

// Withholds reports whether a workspace's files are not stored when there is a
// find in them. Nothing is ever masked in a file: people want it back as it was.
func (p SecretsPolicy) Withholds() bool { return p == SecretsRedact || p == SecretsBlock }

// Refusal says why an export with these finds is not taken, or nothing. It is
// FailedPrecondition: the secrets, or the policy, must change first. Report is
// where the places are listed.
func (p SecretsPolicy) Refusal(found, masked int, workspace, report string) error {
	if p != SecretsBlock || found <= masked {
		return nil
	}
	return Errorf(ClassFailedPrecondition, "the history or the files of workspace %s hold %d possible secrets (what could not be looked into counts as one) and its policy blocks such an export; %s in the export store lists them: remove them, or set export_secrets to redact or keep",
		workspace, found-masked, report)
}
