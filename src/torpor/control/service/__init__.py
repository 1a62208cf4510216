"""What users can ask for, one verb a file, and the gate through which every change of state goes."""
