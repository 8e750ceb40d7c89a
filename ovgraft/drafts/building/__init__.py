"""Builds the IR of a draft from its checkpoint, with OpenVINO ops and weights that stay in the mapped file."""
